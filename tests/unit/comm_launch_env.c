/* tests/unit/comm_launch_env.c - a job of our own launcher where memory or ranks are limited. */
#include <string.h>
#include <sys/resource.h>

#include "tests/unit/launched_job.h"
#include "tests/unit/rank_device.h"

/* All ranks refuse a size that does not fit or that differs between ranks, and can continue. */
static int too_much_memory(struct comm_world *ranks, struct board *b, struct tp_err *err)
{
    struct rank_device d;
    void *p = NULL;
    int64_t x = 1;

    if (rank_device_open(&d, ranks, err))
        return 99;
    if (comm_alloc(&p, ranks, INT64_C(1) << 50, err) == TP_E_NOMEM && !p)
        b->mark++;
    if (comm_alloc(&p, ranks, 100 + rank_of(ranks), err) == TP_E_INTERNAL)
        b->mark++;
    if (!control_sum_i64(d.control, &x, 1, err) && x == N)
        b->mark++;
    rank_device_close(&d);
    comm_close(ranks, TP_OK);
    return 0;
}

Test(comm_launch_env, memory_that_does_not_fit_is_refused_on_all_ranks, .timeout = 120)
{
    struct job j = job_run(too_much_memory);

    cr_assert_eq(j.st, TP_OK, "%s", j.err.msg);
    cr_expect_eq(j.board->mark, 3 * N, "%d of %d", j.board->mark, 3 * N);
}

#ifndef TP_SANITIZE /* AddressSanitizer needs terabytes of address space */
Test(comm_launch_env, little_address_space_makes_small_arenas, .timeout = 120)
{
    const struct rlimit limit = { (rlim_t)6 << 30, (rlim_t)6 << 30 };
    struct job j;

    cr_assert_eq(setrlimit(RLIMIT_AS, &limit), 0);
    j = job_run(succeeds);
    cr_assert_eq(j.st, TP_OK, "%s", j.err.msg);
    cr_expect_eq(j.code, 0);
}
#endif

Test(comm_launch_env, absurd_numbers_of_ranks_are_refused)
{
    struct tp_err err = { 0 };
    struct comm_launched rank;
    int code = -2;

    cr_expect_eq(launch_ranks(0, &rank, &code, &err), TP_E_USAGE);
    cr_expect_eq(launch_ranks(100000, &rank, &code, &err), TP_E_USAGE);
    cr_expect(strstr(err.msg, "100000"), "%s", err.msg);
}
