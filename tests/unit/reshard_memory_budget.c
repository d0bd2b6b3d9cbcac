/* tests/unit/reshard_memory_budget.c - memory for buffers, given a limit on resident memory.
 */
#include "reshard/memory_budget.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static const int64_t MIB = 1 << 20, LIMIT = INT64_C(1) << 40;

Test(memory_budget, later_memory_and_stacks_reduce_the_buffers)
{
    struct memory_budget one, more, threads;
    struct tp_err err = { 0 };

    cr_assert_eq(memory_budget_make(&one, LIMIT, 0, 1, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(memory_budget_make(&more, LIMIT, 100 * MIB, 1, &err), TP_OK);
    cr_assert_eq(memory_budget_make(&threads, LIMIT, 0, 9, &err), TP_OK);
    cr_expect_gt(one.base_bytes, MIB, "this program's own memory counts");
    cr_expect_eq(one.base_bytes + one.buffer_bytes, LIMIT);
    cr_expect_geq(more.base_bytes, one.base_bytes + 99 * MIB);
    cr_expect_eq(more.base_bytes + more.buffer_bytes, LIMIT);
    cr_expect_geq(threads.base_bytes, one.base_bytes + 3 * MIB);
}

Test(memory_budget, memory_in_use_counts)
{
    struct memory_budget before, after;
    struct tp_err err = { 0 };
    int64_t peak;
    char *p;

    cr_assert_eq(memory_budget_make(&before, LIMIT, 0, 1, &err), TP_OK);
    p = malloc(64 * (size_t)MIB);
    cr_assert_not_null(p);
    memset(p, 1, 64 * (size_t)MIB);
    cr_assert_eq(memory_budget_make(&after, LIMIT, 0, 1, &err), TP_OK);
    cr_expect_eq(p[MIB], 1);
    cr_expect_geq(after.base_bytes, before.base_bytes + 60 * MIB);
    peak = memory_peak_bytes();
    cr_expect_geq(peak, 64 * MIB);
    free(p);
    cr_expect_geq(memory_peak_bytes(), peak - 2 * MIB); /* the kernel counts in batches */
}

Test(memory_budget, too_little_is_refused_and_the_named_amount_is_enough)
{
    struct memory_budget budget;
    struct tp_err err = { 0 };

    cr_assert_eq(memory_budget_make(&budget, MIB, 0, 1, &err), TP_E_BUDGET);
    cr_assert(strstr(err.msg, "--mem 1.00 MiB is too little; at least "), "%s", err.msg);
    cr_assert_eq(memory_budget_make(&budget, budget.base_bytes + 5 * MIB, 0, 1, &err), TP_OK, "%s",
                 err.msg);
    cr_assert_geq(budget.buffer_bytes, 4 * MIB);
}

Test(memory_budget, a_part_never_takes_what_the_least_limit_needs)
{
    const int64_t least = 4 * MIB, most = 96 * MIB, later = 500 * MIB;
    struct memory_budget budget;
    struct tp_err err = { 0 };

    cr_expect_eq(memory_budget_part(MIB, later, 1, least, most), least);
    cr_expect_eq(memory_budget_part(LIMIT, later, 1, least, most), most);
    cr_expect_eq(memory_budget_part(8 * 32 * MIB, 0, 1, least, most), 32 * MIB);
    cr_assert_eq(memory_budget_make(&budget, MIB, later, 1, &err), TP_E_BUDGET);
    for (int64_t limit = budget.base_bytes + 5 * MIB; limit < 1000 * MIB; limit += 50 * MIB) {
        int64_t more = memory_budget_part(limit, later, 1, least, most) - least;

        cr_assert_eq(memory_budget_make(&budget, limit, later + more, 1, &err), TP_OK, "%s",
                     err.msg);
    }
}

Test(memory_budget, tables_that_do_not_fit_are_a_limit_that_is_too_small)
{
    struct tp_err err = { 0 };
    tp_status st = tp_fail(&err, TP_E_NOMEM, "model.safetensors: no memory for its header");

    cr_expect_eq(memory_budget_explain(st, 24 * MIB, &err), TP_E_BUDGET);
    cr_expect(strstr(err.msg, "--mem 24.0 MiB is too little"), "%s", err.msg);
    cr_expect(strstr(err.msg, "model.safetensors: no memory for its header"), "%s", err.msg);
    cr_expect_eq(memory_budget_explain(TP_E_CORRUPT, 24 * MIB, &err), TP_E_CORRUPT);
    cr_expect_eq(memory_budget_explain(TP_OK, 24 * MIB, &err), TP_OK);
}
