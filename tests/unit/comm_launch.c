/* tests/unit/comm_launch.c - how a job of our own launcher ends, and what it leaves. */
#include <criterion/criterion.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "comm/comm.h"
#include "comm/launch.h"
#include "core/stop.h"

enum { N = 8 };

/* What the ranks tell the test; shared. */
struct board {
    _Atomic pid_t pids[N];
    _Atomic int ready, mark;
    _Atomic int64_t waiting_us; /* processor time */
};

static struct board *board_new(void)
{
    struct board *b =
        mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    cr_assert_neq((void *)b, MAP_FAILED);
    return b;
}

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void sleep_ms(int ms)
{
    struct timespec t = { ms / 1000, ms % 1000 * 1000000L };

    nanosleep(&t, NULL);
}

/* What a rank does; its exit code. */
typedef int (*rank_fn)(struct comm *world, struct board *b, struct tp_err *err);

/* Start N ranks and wait for them; *seconds is how long that took. */
static tp_status run(rank_fn fn, struct board *b, int *code, double *seconds, struct tp_err *err)
{
    double start = now();
    struct comm *world = NULL;
    int rank;
    tp_status st;

    *code = -1;
    st = launch_ranks(N, &rank, code, err);
    if (rank >= 0) {
        if (st || comm_init(&world, 1 << 20, err))
            _exit(99);
        b->pids[rank] = getpid();
        b->ready++;
        _exit(fn(world, b, err));
    }
    *seconds = now() - start;
    return st;
}

static void expect_none_left(const struct board *b)
{
    for (int r = 0; r < N; r++) {
        cr_expect(b->pids[r] > 0, "rank %d never began", r);
        cr_expect(kill(b->pids[r], 0) == -1 && errno == ESRCH, "rank %d is left", r);
    }
}

static int ends_well(struct comm *world, struct board *b, struct tp_err *err)
{
    (void)b;
    if (comm_barrier(world, err))
        return 3;
    comm_end(world, TP_OK);
    return 0;
}

Test(comm_launch, a_job_that_ends_well_gives_0_and_leaves_nothing, .timeout = 30)
{
    struct board *b = board_new();
    struct tp_err err = { 0 };
    double seconds;
    int code;

    cr_assert_eq(run(ends_well, b, &code, &seconds, &err), TP_OK, "%s", err.msg);
    cr_expect_eq(code, 0);
    expect_none_left(b);
}

static int rank_3_is_killed(struct comm *world, struct board *b, struct tp_err *err)
{
    float x[1000] = { 0 };

    (void)b;
    for (int i = 0; i < 1000000; i++) {
        if (i == 500 && comm_rank(world) == 3)
            kill(getpid(), SIGKILL);
        if (comm_all_reduce(world, x, 1000, COMM_F32, COMM_SUM, err))
            return 3;
    }
    return 0;
}

Test(comm_launch, a_rank_killed_in_a_collective_is_named_and_the_others_end, .timeout = 30)
{
    struct board *b = board_new();
    struct tp_err err = { 0 };
    double seconds;
    int code;

    cr_assert_eq(run(rank_3_is_killed, b, &code, &seconds, &err), TP_E_COMM);
    cr_expect(strstr(err.msg, "rank 3 was killed by signal 9 (SIGKILL)"), "%s", err.msg);
    cr_expect_lt(seconds, 2.0, "%.2f s", seconds);
    expect_none_left(b);
}

static int rank_2_fails_alone(struct comm *world, struct board *b, struct tp_err *err)
{
    (void)b;
    if (comm_rank(world) == 2) {
        comm_end(world, TP_E_USAGE);
        return 2;
    }
    comm_barrier(world, err);
    return 0;
}

Test(comm_launch, a_rank_that_fails_alone_gives_its_code_and_ends_those_that_wait, .timeout = 30)
{
    struct board *b = board_new();
    struct tp_err err = { 0 };
    double seconds;
    int code;

    cr_assert_eq(run(rank_2_fails_alone, b, &code, &seconds, &err), TP_OK, "%s", err.msg);
    cr_expect_eq(code, 2, "exit code %d", code);
    cr_expect_lt(seconds, 1.9, "%.2f s", seconds); /* not after the two seconds */
    expect_none_left(b);
}

/* A job in the background that rank 2 never starts: it fails alone, with one of its own open that
 * the others never start, while they wait for theirs. */
static int rank_2_fails_beside_jobs(struct comm *world, struct board *b, struct tp_err *err)
{
    struct comm_job job, second;
    struct comm *other = NULL;
    void *x = NULL;

    (void)b;
    if (comm_alloc(&x, world, 1 << 20, err) || comm_split(&other, world, 0, 0, err))
        return 99;
    if (comm_start_all_reduce(world, x, 1000, COMM_F32, COMM_SUM, &job, err) ||
        comm_finish(world, &job, err))
        return 98;
    if (comm_start_all_reduce(other, x, 1000, COMM_F32, COMM_SUM, &job, err))
        return 97;
    if (comm_rank(world) == 2) {
        comm_finish(other, &job, err);
        comm_start_all_reduce(other, x, 1000, COMM_F32, COMM_SUM, &second, err);
        comm_free(other);
        comm_end(world, TP_E_USAGE);
        return 2;
    }
    comm_finish(other, &job, err);
    comm_start_all_reduce(world, x, 1000, COMM_F32, COMM_SUM, &second, err);
    comm_finish(world, &second, err);
    return 96;
}

Test(comm_launch, a_failure_beside_jobs_in_the_background_ends_everybody, .timeout = 30)
{
    struct board *b = board_new();
    struct tp_err err = { 0 };
    double seconds;
    int code;

    cr_assert_eq(run(rank_2_fails_beside_jobs, b, &code, &seconds, &err), TP_OK, "%s", err.msg);
    cr_expect_eq(code, 2, "exit code %d", code);
    cr_expect_lt(seconds, 1.9, "%.2f s", seconds); /* who waits for a job is seen to be blocked */
    expect_none_left(b);
}

/* All fail together, and rank 0 needs some time to say why. */
static int all_agree_to_fail(struct comm *world, struct board *b, struct tp_err *err)
{
    tp_status st = TP_OK;

    if (comm_rank(world) == 5)
        st = tp_fail(err, TP_E_IO, "the disk is full");
    st = comm_agree(world, st, err);
    if (comm_rank(world) == 0) {
        sleep_ms(2500);
        if (!strcmp(err->msg, "rank 5: the disk is full"))
            b->mark = 1;
    }
    comm_end(world, st);
    return tp_exit_code(st);
}

/* One fails alone while another computes for ever. */
static int rank_4_is_busy(struct comm *world, struct board *b, struct tp_err *err)
{
    tp_status st = comm_rank(world) == 1 ? TP_E_IO : TP_OK;

    (void)b;
    (void)err;
    if (comm_rank(world) == 4)
        sleep_ms(60000);
    comm_end(world, st);
    return tp_exit_code(st);
}

Test(comm_launch, after_a_failure_a_rank_that_goes_on_is_ended_too, .timeout = 30)
{
    struct board *b = board_new();
    struct tp_err err = { 0 };
    double seconds;
    int code;

    cr_assert_eq(run(rank_4_is_busy, b, &code, &seconds, &err), TP_OK, "%s", err.msg);
    cr_expect_eq(code, 3, "exit code %d", code);
    cr_expect(seconds > 1.9 && seconds < 20, "%.2f s", seconds);
    expect_none_left(b);
}

Test(comm_launch, an_agreed_failure_leaves_rank_0_time_to_report, .timeout = 30)
{
    struct board *b = board_new();
    struct tp_err err = { 0 };
    double seconds;
    int code;

    cr_assert_eq(run(all_agree_to_fail, b, &code, &seconds, &err), TP_OK, "%s", err.msg);
    cr_expect_eq(code, 3, "exit code %d", code);
    cr_expect_eq(b->mark, 1);
    expect_none_left(b);
}

static int rank_1_leaves(struct comm *world, struct board *b, struct tp_err *err)
{
    while (comm_rank(world) == 1 && b->ready < N)
        sleep_ms(1); /* the others are ended at once: let them begin first */
    if (comm_rank(world) == 1)
        return 0;
    return comm_barrier(world, err) ? 3 : 0;
}

Test(comm_launch, a_rank_that_leaves_without_a_word_is_an_error, .timeout = 30)
{
    struct board *b = board_new();
    struct tp_err err = { 0 };
    double seconds;
    int code;

    cr_assert_eq(run(rank_1_leaves, b, &code, &seconds, &err), TP_E_COMM);
    cr_expect(strstr(err.msg, "rank 1 "), "%s", err.msg);
    expect_none_left(b);
}

static int stops_when_asked(struct comm *world, struct board *b, struct tp_err *err)
{
    int64_t stop = 0;

    for (int i = 0; !stop && i < 4000; i++) {
        sleep_ms(5);
        stop = stop_requested();
        if (comm_all_reduce(world, &stop, 1, COMM_I64, COMM_MAX, err))
            return 3;
    }
    b->mark += stop_requested();
    comm_end(world, TP_E_STOPPED);
    return stop ? 75 : 0;
}

/* A launcher in a process of its own, which ends with the job's code, or 100 for TP_E_COMM. */
static pid_t launcher(rank_fn fn, struct board *b)
{
    pid_t pid = fork();
    struct tp_err err = { 0 };
    double seconds;
    int code;

    if (pid == 0)
        _exit(run(fn, b, &code, &seconds, &err) ? 100 : code);
    for (int i = 0; b->ready < N && i < 1000; i++)
        sleep_ms(5);
    cr_assert_eq(b->ready, N);
    return pid;
}

static int wait_code(pid_t pid)
{
    int how = 0;

    cr_assert_eq(waitpid(pid, &how, 0), pid);
    return WIFEXITED(how) ? WEXITSTATUS(how) : 1000 + WTERMSIG(how);
}

Test(comm_launch, a_signal_asks_all_ranks_to_save_and_stop, .timeout = 60)
{
    static const int signals[] = { SIGTERM, SIGINT, SIGUSR1 };

    for (int i = 0; i < 3; i++) {
        struct board *b = board_new();
        pid_t pid = launcher(stops_when_asked, b);

        kill(pid, signals[i]);
        cr_expect_eq(wait_code(pid), 75, "signal %d", signals[i]);
        cr_expect_gt(b->mark, 0);
        expect_none_left(b);
    }
}

Test(comm_launch, ctrl_c_reaches_the_ranks_only_through_the_launcher, .timeout = 60)
{
    struct board *b = board_new();
    pid_t pid = launcher(stops_when_asked, b);

    for (int r = 0; r < N; r++) {
        kill(b->pids[r], SIGINT);
        kill(b->pids[r], SIGTERM);
    }
    sleep_ms(50);
    cr_expect_eq(kill(pid, 0), 0);
    kill(pid, SIGINT);
    cr_expect_eq(wait_code(pid), 75);
}

static int never_ends(struct comm *world, struct board *b, struct tp_err *err)
{
    (void)b;
    if (comm_rank(world) == 0)
        sleep_ms(20000);
    return comm_barrier(world, err) ? 3 : 0;
}

Test(comm_launch, a_second_interrupt_ends_at_once, .timeout = 60)
{
    struct board *b = board_new();
    pid_t pid = launcher(never_ends, b);
    double start;

    kill(pid, SIGINT);
    sleep_ms(300);
    cr_expect_eq(kill(b->pids[0], 0), 0);
    start = now();
    kill(pid, SIGINT);
    cr_expect_eq(wait_code(pid), 100);
    cr_expect_lt(now() - start, 5.0);
    expect_none_left(b);
}

Test(comm_launch, ranks_die_with_their_launcher, .timeout = 60)
{
    struct board *b = board_new();
    pid_t pid = launcher(never_ends, b);

    kill(pid, SIGKILL);
    cr_expect_eq(wait_code(pid), 1000 + SIGKILL);
    for (int r = 0; r < N; r++) {
        int i = 0;

        /* Orphans: whoever adopts them may be slow to reap, and a zombie is no process. */
        for (; i < 400 && kill(b->pids[r], 0) == 0; i++) {
            char path[64], line[256] = "";
            FILE *f;

            snprintf(path, sizeof path, "/proc/%d/stat", (int)b->pids[r]);
            if (!(f = fopen(path, "r")) || !fgets(line, sizeof line, f) || strstr(line, ") Z "))
                i = 1000;
            if (f)
                fclose(f);
            sleep_ms(5);
        }
        cr_expect(i != 400, "rank %d lives on", r);
    }
}

static int seven_wait_a_second(struct comm *world, struct board *b, struct tp_err *err)
{
    struct rusage before, after;

    comm_barrier(world, err);
    if (comm_rank(world) == 0)
        sleep_ms(1000);
    getrusage(RUSAGE_SELF, &before);
    comm_barrier(world, err);
    getrusage(RUSAGE_SELF, &after);
    b->waiting_us += (after.ru_utime.tv_sec - before.ru_utime.tv_sec) * 1000000 +
                     after.ru_utime.tv_usec - before.ru_utime.tv_usec +
                     (after.ru_stime.tv_sec - before.ru_stime.tv_sec) * 1000000 +
                     after.ru_stime.tv_usec - before.ru_stime.tv_usec;
    comm_end(world, TP_OK);
    return 0;
}

Test(comm_launch, ranks_that_wait_use_no_processor_time, .timeout = 30)
{
    struct board *b = board_new();
    struct tp_err err = { 0 };
    double seconds;
    int code;

    cr_assert_eq(run(seven_wait_a_second, b, &code, &seconds, &err), TP_OK, "%s", err.msg);
    cr_expect_gt(seconds, 1.0);
    cr_expect_lt(b->waiting_us, 200000, "%lld us", (long long)b->waiting_us);
    cr_log_info("7 ranks waited 1 s and used %lld us", (long long)b->waiting_us);
}

static int calls_differ(struct comm *world, struct board *b, struct tp_err *err)
{
    float x[16] = { 0 };
    tp_status st = comm_rank(world) == 6 ? comm_broadcast(world, x, 12, 0, err)
                                         : comm_all_reduce(world, x, 16, COMM_F32, COMM_SUM, err);

    if (st == TP_E_INTERNAL && strstr(err->msg, "all_reduce of 64 bytes") &&
        strstr(err->msg, "broadcast of 12 bytes"))
        b->mark++;
    comm_end(world, TP_OK);
    return 0;
}

Test(comm_launch, ranks_that_call_different_things_are_told_so, .timeout = 30)
{
    struct board *b = board_new();
    struct tp_err err = { 0 };
    double seconds;
    int code;

    cr_assert_eq(run(calls_differ, b, &code, &seconds, &err), TP_OK, "%s", err.msg);
    cr_expect_eq(b->mark, N, "%d ranks were told", b->mark);
}

/* One rank has less room than the others: all are refused, and can go on. */
static int too_much_memory(struct comm *world, struct board *b, struct tp_err *err)
{
    void *p = NULL;
    float x = 1;

    if (comm_alloc(&p, world, INT64_C(1) << 50, err) == TP_E_NOMEM && !p)
        b->mark++;
    if (comm_alloc(&p, world, 100 + comm_rank(world), err) == TP_E_INTERNAL)
        b->mark++;
    if (!comm_all_reduce(world, &x, 1, COMM_F32, COMM_SUM, err) && x == N)
        b->mark++;
    comm_end(world, TP_OK);
    return 0;
}

Test(comm_launch, memory_that_does_not_fit_is_refused_on_all_ranks, .timeout = 30)
{
    struct board *b = board_new();
    struct tp_err err = { 0 };
    double seconds;
    int code;

    cr_assert_eq(run(too_much_memory, b, &code, &seconds, &err), TP_OK, "%s", err.msg);
    cr_expect_eq(b->mark, 3 * N, "%d of %d", b->mark, 3 * N);
}

#ifndef TP_SANITIZE /* AddressSanitizer needs terabytes of address space */
Test(comm_launch, little_address_space_makes_small_arenas, .timeout = 30)
{
    struct rlimit limit = { 6u << 30, 6u << 30 };
    struct board *b = board_new();
    struct tp_err err = { 0 };
    double seconds;
    int code;

    limit.rlim_cur = limit.rlim_max = (rlim_t)6 << 30;
    cr_assert_eq(setrlimit(RLIMIT_AS, &limit), 0);
    cr_assert_eq(run(ends_well, b, &code, &seconds, &err), TP_OK, "%s", err.msg);
    cr_expect_eq(code, 0);
}
#endif

static int a_child_is_no_rank(struct comm *world, struct board *b, struct tp_err *err)
{
    struct comm *own = NULL;
    pid_t pid = fork();

    if (pid == 0)
        _exit(comm_init(&own, 1 << 20, err) ? 50 : comm_size(own));
    b->mark += wait_code(pid) == 1;
    comm_end(world, TP_OK);
    return 0;
}

Test(comm_launch, what_a_rank_starts_is_no_rank, .timeout = 30)
{
    struct board *b = board_new();
    struct tp_err err = { 0 };
    double seconds;
    int code;

    cr_assert_eq(run(a_child_is_no_rank, b, &code, &seconds, &err), TP_OK, "%s", err.msg);
    cr_expect_eq(b->mark, N);
}

/* Begins before main, like a library that reads the environment when it is loaded. */
__attribute__((constructor)) static void executed_again(void)
{
    const char *policy = getenv("OMP_WAIT_POLICY");

    if (getenv("TP_TEST_EXECUTED_AGAIN"))
        _exit(policy && !strcmp(policy, "passive") ? 42 : 1);
}

Test(comm_launch, the_program_is_executed_again_with_a_passive_wait_policy)
{
    char *argv[] = { "tp", NULL };
    pid_t pid;

    setenv("TP_TEST_EXECUTED_AGAIN", "1", 1);
    unsetenv("GOMP_SPINCOUNT");
    unsetenv("OMP_WAIT_POLICY");
    if ((pid = fork()) == 0) {
        launch_prepare_env(argv);
        _exit(2);
    }
    cr_expect_eq(wait_code(pid), 42);
    setenv("OMP_WAIT_POLICY", "active", 1); /* the user's own stays */
    if ((pid = fork()) == 0) {
        launch_prepare_env(argv);
        _exit(2);
    }
    cr_expect_eq(wait_code(pid), 2);
}

Test(comm_launch, absurd_numbers_of_ranks_are_refused)
{
    struct tp_err err = { 0 };
    int rank = -2, code = -2;

    cr_expect_eq(launch_ranks(0, &rank, &code, &err), TP_E_USAGE);
    cr_expect_eq(launch_ranks(100000, &rank, &code, &err), TP_E_USAGE);
    cr_expect(strstr(err.msg, "100000"), "%s", err.msg);
}

Test(comm_launch, mpi_is_known_by_its_environment)
{
    static const struct {
        const char *set[3]; /* "NAME=VALUE" */
        bool is_mpi;
        int world;
    } rows[] = {
        { { 0 }, false, 0 },
        { { "OMPI_COMM_WORLD_SIZE=4" }, true, 4 },
        { { "PMI_SIZE=3", "PMI_RANK=0" }, true, 3 },
        { { "PMIX_RANK=1" }, true, 0 },
        { { "PMIX_RANK=1", "SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=16" }, true, 16 },
        { { "SLURM_PROCID=0", "SLURM_NTASKS=8" }, false, 0 },         /* a batch script */
        { { "SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=1" }, false, 0 }, /* srun --pty bash */
        { { "OMPI_COMM_WORLD_SIZE=nonsense" }, false, 0 },
    };
    static const char *const names[] = {
        "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID", "SLURM_NTASKS",
        "SLURM_STEP_NUM_TASKS"
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int world = -1;

        for (size_t k = 0; k < sizeof names / sizeof *names; k++)
            unsetenv(names[k]);
        for (int k = 0; k < 3 && rows[i].set[k]; k++)
            putenv((char *)(uintptr_t)rows[i].set[k]);
        cr_expect_eq(launch_is_mpi(&world), rows[i].is_mpi, "row %zu", i);
        cr_expect_eq(world, rows[i].world, "row %zu: %d", i, world);
    }
}
