/* tests/unit/layout_workload.c - the microbatches of a rank, as requested or by default.
 * covers: layout/recompute */
#include "layout/workload.h"

#include <criterion/criterion.h>

Test(workload, microbatches_are_as_requested_or_all_sequences_of_a_dp_rank)
{
    struct workload w = workload_default();
    struct spec s = spec_default();

    w.global_batch_size = 24;
    s.dp = 3;
    cr_expect(workload_micro(&w, &s) == 8 && workload_micros(&w, &s) == 1);
    w.micro_batch_size = 2;
    cr_expect(workload_micro(&w, &s) == 2 && workload_micros(&w, &s) == 4);
    w.micro_batch_size = 0;
    w.same_bits = 4; /* the default must not depend on the layout */
    cr_expect(workload_micro(&w, &s) == 1 && workload_micros(&w, &s) == 8);
    w = (struct workload){ 0 };
    cr_expect(workload_micro(&w, &s) == 0 && workload_micros(&w, &s) == 0);
}

Test(recompute, names_are_read_back)
{
    enum recompute r = RECOMPUTE_COUNT;

    for (int i = 0; i < RECOMPUTE_COUNT; i++)
        cr_expect(recompute_parse(&r, recompute_name((enum recompute)i)) && (int)r == i);
    cr_expect_not(recompute_parse(&r, "some"));
    cr_expect_eq(r, RECOMPUTE_FULL, "unchanged");
}
