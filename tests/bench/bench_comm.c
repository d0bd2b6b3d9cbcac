/*
 * tests/bench/bench_comm.c - the time of an all-reduce, and a rank's CPU time.
 *
 * Sums of floats in buffers of comm_alloc, as in a tensor-parallel layer. The ranks are started by
 * our launcher (shm), by mpirun on one host (mpirun), and by mpirun as if each rank had its own
 * host (mpi). Where ranks share cores, CPU time matters more: a rank that waits should use none.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/rank_env.h"
#include "comm/launch.h"
#include "core/clock.h"
#include "tests/unit/rank_device.h"

enum { MIN_BYTES = 4 << 10, MAX_BYTES = 16 << 20, ROUNDS = 3 };

/* An all-reduce that has ended. */
static tp_status all_reduce(struct rank_device *d, float *buf, int64_t n, struct tp_err *err)
{
    comm_all_reduce(d->all, d->queue, buf, n, DTYPE_F32, COMM_SUM);
    return rank_device_sync(d, d->queue, err);
}

/* Seconds of wall time and of CPU time (mean of the ranks) per call; the best of some rounds. */
static tp_status measure(struct rank_device *d, float *buf, int64_t n_bytes, double best[2],
                         struct tp_err *err)
{
    int calls = n_bytes > 1 << 20 ? 20 : n_bytes > 1 << 16 ? 100 : 300;
    tp_status st = TP_OK;

    best[0] = best[1] = 1e9;
    for (int round = 0; round < ROUNDS; round++) {
        double t[2];

        TP_TRY(control_barrier(d->control, err));
        t[0] = clock_seconds(), t[1] = clock_cpu_seconds();
        for (int i = 0; i < calls; i++)
            TP_TRY(all_reduce(d, buf, n_bytes / 4, err));
        t[0] = clock_seconds() - t[0], t[1] = clock_cpu_seconds() - t[1];
        TP_TRY(control_sum_f64(d->control, t, 2, err));
        for (int k = 0; k < 2; k++)
            if (t[k] / comm_size(d->all) / calls < best[k])
                best[k] = t[k] / comm_size(d->all) / calls;
    }
done:
    return st;
}

static void work_ms(double ms)
{
    double until = clock_cpu_seconds() + ms * 1e-3;

    while (clock_cpu_seconds() < until)
        ;
}

/* As in training: 33 reductions of 2 MiB per step, and between them work that differs a little
 * among the ranks. *share is the share of CPU time that is spent in the calls. */
static tp_status step_share(struct rank_device *d, float *buf, double *share, struct tp_err *err)
{
    double inside = 0, whole = 0;
    unsigned seed = (unsigned)comm_rank(d->all);
    tp_status st = TP_OK;

    for (int i = 0; i < 33; i++) {
        double start = clock_cpu_seconds(), before;

        seed = seed * 1664525u + 1013904223u;
        work_ms(10 + 2.0 * (seed >> 16) / 65536);
        before = clock_cpu_seconds();
        TP_TRY(all_reduce(d, buf, 2 << 18, err));
        inside += clock_cpu_seconds() - before;
        whole += clock_cpu_seconds() - start;
    }
    *share = inside / whole;
    TP_TRY(control_sum_f64(d->control, share, 1, err));
    *share /= comm_size(d->all);
done:
    return st;
}

static tp_status rows(struct rank_device *d, const char *way, struct tp_err *err)
{
    void *buf = NULL;
    tp_status st = TP_OK;

    TP_TRY(comm_alloc(&buf, d->ranks, MAX_BYTES, err));
    for (int64_t n = MIN_BYTES; n <= MAX_BYTES; n *= 4) {
        for (int64_t m = n; m <= 2 * n && m <= MAX_BYTES; m *= 2) {
            double t[2];

            if (m != n && m != 2 << 20)
                continue;
            TP_TRY(measure(d, buf, m, t, err));
            if (comm_rank(d->all) == 0)
                printf("%-6s %5d %9lld %11.1f %11.1f %9.2f\n", way, comm_size(d->all),
                       (long long)m / 1024, t[0] * 1e6, t[1] * 1e6, (double)m / t[0] * 1e-9);
            fflush(stdout);
        }
    }
    if (comm_size(d->all) == 2) {
        double share;

        TP_TRY(step_share(d, buf, &share, err));
        if (comm_rank(d->all) == 0)
            printf(
                "%-6s %5d 33 all-reduces of 2 MiB among 11 ms of work each: %.2f %% of cpu time\n",
                way, comm_size(d->all), share * 100);
    }
done:
    return st;
}

static int be_rank(const struct comm_env *env, const char *way)
{
    struct comm_world *ranks = NULL;
    struct rank_device d = { 0 };
    struct tp_err err = { 0 };
    tp_status st = comm_open(&ranks, env, 1 << 28, &err);

    if (!st)
        st = rank_device_open(&d, ranks, &err);
    if (!st)
        st = rows(&d, way, &err);
    if (st)
        fprintf(stderr, "bench_comm: %s\n", err.msg);
    rank_device_close(&d);
    comm_close(ranks, st);
    return tp_exit_code(st);
}

int main(int argc, char **argv)
{
    static const int sizes[] = { 2, 4, 8 };
    struct comm_env env;
    struct tp_err err = { 0 };
    int code = 0;

    (void)argc;
    rank_env_read(&env);
    if (env.is_mpi)
        return be_rank(&env, env.host_ranks ? "mpi" : "mpirun");
    printf("all-reduce of floats, %ld cores; per call and rank\n"
           "%-6s %5s %9s %11s %11s %9s\n",
           sysconf(_SC_NPROCESSORS_ONLN), "way", "ranks", "KiB", "wall us", "cpu us", "GB/s");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && !code; i++) {
        tp_status st = launch_ranks(sizes[i], &env.launched, &code, &err);

        if (env.launched.rank >= 0)
            return st ? tp_exit_code(st) : be_rank(&env, "shm");
        if (st)
            fprintf(stderr, "bench_comm: %s\n", err.msg);
    }
    fflush(stdout);
    for (size_t i = 0; i < 2 * sizeof sizes / sizeof *sizes && !code; i++) {
        char command[4096];

        snprintf(command, sizeof command,
                 "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 %s "
                 "mpirun --oversubscribe --bind-to none -n %d '%s'",
                 i % 2 ? "TP_HOST_RANKS=1" : "", sizes[i / 2], argv[0]);
        code = system(command) ? 1 : 0;
    }
    return code;
}
