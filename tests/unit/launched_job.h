/*
 * tests/unit/launched_job.h - a job of N ranks of our own launcher, for tests of how it ends.
 */
#ifndef TESTS_UNIT_LAUNCHED_JOB_H
#define TESTS_UNIT_LAUNCHED_JOB_H

#include <criterion/criterion.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "comm/control.h"
#include "comm/launch.h"
#include "comm/world.h"
#include "core/clock.h"

enum { N = 8 };

/* What the ranks report to the test, in shared memory. */
struct board {
    _Atomic pid_t pids[N];
    _Atomic int ready, mark;
    _Atomic int64_t waiting_us; /* CPU time */
};

static inline struct board *board_new(void)
{
    struct board *b =
        mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    cr_assert_neq((void *)b, MAP_FAILED);
    return b;
}

static inline void sleep_ms(int ms)
{
    struct timespec t = { ms / 1000, ms % 1000 * 1000000L };

    nanosleep(&t, NULL);
}

/* What a rank does. Returns its exit code. */
typedef int (*rank_fn)(struct comm_world *ranks, struct board *b, struct tp_err *err);

static inline int rank_of(struct comm_world *ranks)
{
    return control_rank(comm_control(ranks));
}

/* A rank that succeeds. */
static inline int succeeds(struct comm_world *ranks, struct board *b, struct tp_err *err)
{
    (void)b;
    if (control_barrier(comm_control(ranks), err))
        return 3;
    comm_close(ranks, TP_OK);
    return 0;
}

/* A job that has ended. */
struct job {
    struct board *board;
    tp_status st; /* of launch_ranks, with its error and exit code */
    struct tp_err err;
    int code;
    double seconds; /* wall time of the job */
};

static inline void job_run_on(struct job *j, rank_fn fn)
{
    double start = clock_seconds();
    struct comm_world *ranks = NULL;
    struct comm_env env = { 0 };

    j->code = -1;
    j->st = launch_ranks(N, &env.launched, &j->code, &j->err);
    if (env.launched.rank >= 0) {
        if (j->st || comm_open(&ranks, &env, 1 << 20, &j->err))
            _exit(99);
        j->board->pids[env.launched.rank] = getpid();
        j->board->ready++;
        _exit(fn(ranks, j->board, &j->err));
    }
    j->seconds = clock_seconds() - start;
}

/* Start N ranks and wait for them. */
static inline struct job job_run(rank_fn fn)
{
    struct job j = { .board = board_new() };

    job_run_on(&j, fn);
    return j;
}

static inline void expect_none_left(const struct board *b)
{
    for (int r = 0; r < N; r++) {
        cr_expect(b->pids[r] > 0, "rank %d never started", r);
        cr_expect(kill(b->pids[r], 0) == -1 && errno == ESRCH, "rank %d is still alive", r);
    }
}

/* Start a launcher in its own process. It exits with the job's code, or with 100 for TP_E_COMM. */
static inline pid_t launcher(rank_fn fn, struct board *b)
{
    struct job j = { .board = b };
    pid_t pid = fork();

    if (pid == 0) {
        job_run_on(&j, fn);
        _exit(j.st ? 100 : j.code);
    }
    for (int i = 0; b->ready < N && i < 10000; i++)
        sleep_ms(5);
    cr_assert_eq(b->ready, N);
    return pid;
}

static inline int wait_code(pid_t pid)
{
    int how = 0;

    cr_assert_eq(waitpid(pid, &how, 0), pid);
    return WIFEXITED(how) ? WEXITSTATUS(how) : 1000 + WTERMSIG(how);
}

#endif
