/* tests/unit/comm_launch.c - how a job of our own launcher ends; no process is left. */
#include <string.h>
#include <sys/resource.h>

#include "tests/unit/launched_job.h"
#include "tests/unit/rank_device.h"

Test(comm_launch, a_job_that_succeeds_returns_0_and_leaves_nothing, .timeout = 120)
{
    struct job j = job_run(succeeds);

    cr_assert_eq(j.st, TP_OK, "%s", j.err.msg);
    cr_expect_eq(j.code, 0);
    expect_none_left(j.board);
}

static int rank_3_is_killed(struct comm_world *ranks, struct board *b, struct tp_err *err)
{
    struct rank_device d;
    void *x = NULL;

    (void)b;
    if (rank_device_open(&d, ranks, err) || comm_alloc(&x, ranks, 4000, err))
        return 99;
    for (int i = 0; i < 1000000; i++) {
        if (i == 500 && rank_of(ranks) == 3)
            kill(getpid(), SIGKILL);
        comm_all_reduce(d.all, d.queue, x, 1000, DTYPE_F32, COMM_SUM);
        if (rank_device_sync(&d, d.queue, err))
            return 3;
    }
    return 0;
}

Test(comm_launch, a_rank_killed_in_a_collective_is_named_and_the_others_end, .timeout = 120)
{
    struct job j = job_run(rank_3_is_killed);

    cr_assert_eq(j.st, TP_E_COMM);
    cr_expect(strstr(j.err.msg, "rank 3 was killed by signal 9 (SIGKILL)"), "%s", j.err.msg);
    expect_none_left(j.board);
}

static int rank_2_fails(struct comm_world *ranks, struct tp_err *err)
{
    if (rank_of(ranks) == 2) {
        comm_close(ranks, TP_E_USAGE);
        return 2;
    }
    control_barrier(comm_control(ranks), err);
    return 0;
}

static int rank_2_fails_alone(struct comm_world *ranks, struct board *b, struct tp_err *err)
{
    (void)b;
    return rank_2_fails(ranks, err);
}

Test(comm_launch, a_rank_that_fails_alone_sets_the_exit_code_and_ends_waiting_ranks, .timeout = 120)
{
    struct job j = job_run(rank_2_fails_alone);

    cr_assert_eq(j.st, TP_OK, "%s", j.err.msg);
    cr_expect_eq(j.code, 2, "exit code %d", j.code);
    expect_none_left(j.board);
}

/* All agree that a rank has failed. Then a rank that does not wait for others has a minute to end,
 * so a job that ends sooner has ended those that wait. */
static bool all_agree_on(int failed, struct comm_world *ranks, struct tp_err *err)
{
    tp_status st = TP_OK;

    if (rank_of(ranks) == failed)
        st = tp_fail(err, TP_E_USAGE, "this rank has failed");
    return control_agree(comm_control(ranks), st, err) == TP_E_USAGE;
}

static void expect_sooner_than_a_minute(struct job j)
{
    cr_assert_eq(j.st, TP_OK, "%s", j.err.msg);
    cr_expect_eq(j.code, 2, "exit code %d", j.code);
    cr_expect_lt(j.seconds, 50, "%.2f s", j.seconds);
    expect_none_left(j.board);
}

static int rank_2_fails_and_all_know(struct comm_world *ranks, struct board *b, struct tp_err *err)
{
    (void)b;
    return all_agree_on(2, ranks, err) ? rank_2_fails(ranks, err) : 97;
}

Test(comm_launch, ranks_that_wait_for_one_that_has_failed_are_ended_soon, .timeout = 120)
{
    expect_sooner_than_a_minute(job_run(rank_2_fails_and_all_know));
}

/* Each rank's queue has a thread. Rank 2 queues a collective of another communicator than the other
 * ranks, so that every queue waits. The last rank is in none of the two, and ends. */
static int queues_wait_when_the_last_rank_fails(struct comm_world *ranks, struct board *b,
                                                struct tp_err *err)
{
    const int last = N - 1, color = rank_of(ranks) == last ? -1 : 0;
    struct comm *one = NULL, *other = NULL;
    struct device_queue *q = NULL;
    struct rank_device d;
    void *x = NULL;

    (void)b;
    if (rank_device_open(&d, ranks, err) || comm_alloc(&x, ranks, 1 << 19, err) ||
        comm_split(&one, d.all, color, 0, err) || comm_split(&other, d.all, color, 0, err) ||
        device_queue_open(d.device, &q, DEVICE_QUEUE_COMM, err))
        return 99;
    if (!all_agree_on(last, ranks, err))
        return 97;
    if (rank_of(ranks) == last) {
        comm_close(ranks, TP_E_USAGE);
        return 2;
    }
    comm_all_reduce(rank_of(ranks) == 2 ? other : one, q, x, 1000, DTYPE_F32, COMM_SUM);
    rank_device_sync(&d, q, err);
    return 96;
}

Test(comm_launch, a_rank_that_waits_for_a_queue_is_ended_like_one_that_waits_itself, .timeout = 120)
{
    expect_sooner_than_a_minute(job_run(queues_wait_when_the_last_rank_fails));
}

/* All ranks fail together, and rank 0 needs some time to report why. */
static int all_agree_to_fail(struct comm_world *ranks, struct board *b, struct tp_err *err)
{
    tp_status st = TP_OK;

    if (rank_of(ranks) == 5)
        st = tp_fail(err, TP_E_IO, "the disk is full");
    st = control_agree(comm_control(ranks), st, err);
    if (rank_of(ranks) == 0) {
        sleep_ms(2500);
        if (!strcmp(err->msg, "rank 5: the disk is full"))
            b->mark = 1;
    }
    comm_close(ranks, st);
    return tp_exit_code(st);
}

/* One rank fails alone while another computes for a long time. */
static int rank_4_is_busy(struct comm_world *ranks, struct board *b, struct tp_err *err)
{
    tp_status st = rank_of(ranks) == 1 ? TP_E_IO : TP_OK;

    (void)b;
    (void)err;
    while (rank_of(ranks) == 4)
        sleep_ms(1000);
    comm_close(ranks, st);
    return tp_exit_code(st);
}

Test(comm_launch, after_a_failure_a_rank_that_continues_is_ended_too, .timeout = 120)
{
    struct job j = job_run(rank_4_is_busy);

    cr_assert_eq(j.st, TP_OK, "%s", j.err.msg);
    cr_expect_eq(j.code, 3, "exit code %d", j.code);
    cr_expect_gt(j.seconds, 1.15, "%.2f s", j.seconds);
    expect_none_left(j.board);
}

Test(comm_launch, an_agreed_failure_leaves_rank_0_time_to_report, .timeout = 120)
{
    struct job j = job_run(all_agree_to_fail);

    cr_assert_eq(j.st, TP_OK, "%s", j.err.msg);
    cr_expect_eq(j.code, 3, "exit code %d", j.code);
    cr_expect_eq(j.board->mark, 1);
    expect_none_left(j.board);
}

static int rank_1_leaves(struct comm_world *ranks, struct board *b, struct tp_err *err)
{
    while (rank_of(ranks) == 1 && b->ready < N)
        sleep_ms(1); /* the other ranks are ended at once: let them start first */
    if (rank_of(ranks) == 1)
        return 0;
    return control_barrier(comm_control(ranks), err) ? 3 : 0;
}

Test(comm_launch, a_rank_that_exits_without_closing_is_an_error, .timeout = 120)
{
    struct job j = job_run(rank_1_leaves);

    cr_assert_eq(j.st, TP_E_COMM);
    cr_expect(strstr(j.err.msg, "rank 1 "), "%s", j.err.msg);
    expect_none_left(j.board);
}

static int seven_wait_a_second(struct comm_world *ranks, struct board *b, struct tp_err *err)
{
    struct rusage before, after;

    control_barrier(comm_control(ranks), err);
    if (rank_of(ranks) == 0)
        sleep_ms(1000);
    getrusage(RUSAGE_SELF, &before);
    control_barrier(comm_control(ranks), err);
    getrusage(RUSAGE_SELF, &after);
    b->waiting_us += (after.ru_utime.tv_sec - before.ru_utime.tv_sec) * 1000000 +
                     after.ru_utime.tv_usec - before.ru_utime.tv_usec +
                     (after.ru_stime.tv_sec - before.ru_stime.tv_sec) * 1000000 +
                     after.ru_stime.tv_usec - before.ru_stime.tv_usec;
    comm_close(ranks, TP_OK);
    return 0;
}

Test(comm_launch, ranks_that_wait_use_no_cpu_time, .timeout = 120)
{
    struct job j = job_run(seven_wait_a_second);

    cr_assert_eq(j.st, TP_OK, "%s", j.err.msg);
    cr_expect_gt(j.seconds, 1.0);
    cr_expect_lt(j.board->waiting_us, 200000, "%lld us", (long long)j.board->waiting_us);
    cr_log_info("7 ranks waited 1 s and used %lld us", (long long)j.board->waiting_us);
}

static int calls_differ(struct comm_world *ranks, struct board *b, struct tp_err *err)
{
    struct comm_control *c = comm_control(ranks);
    double x[8] = { 0 };
    tp_status st =
        rank_of(ranks) == 6 ? control_broadcast(c, x, 12, 0, err) : control_sum_f64(c, x, 8, err);

    if (st == TP_E_INTERNAL && strstr(err->msg, "all_reduce of 64 bytes") &&
        strstr(err->msg, "broadcast of 12 bytes"))
        b->mark++;
    comm_close(ranks, TP_OK);
    return 0;
}

Test(comm_launch, different_collectives_at_once_are_an_error_on_every_rank, .timeout = 120)
{
    struct job j = job_run(calls_differ);

    cr_assert_eq(j.st, TP_OK, "%s", j.err.msg);
    cr_expect_eq(j.board->mark, N, "%d ranks report it", j.board->mark);
}
