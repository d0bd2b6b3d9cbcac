/*
 * tests/bench/bench_comm.c - what an all-reduce costs: time, and processor time of a rank.
 *
 * Buffers of comm_alloc, float sums, as a tensor-parallel layer has them. Ranks of our own launcher
 * (shm), of mpirun on one host (mpirun), and of mpirun as if each had a host of its own (mpi).
 * Processor time is what counts where ranks share cores: a rank
 * that waits should cost nothing.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/comm.h"
#include "comm/launch.h"
#include "core/clock.h"

enum { MIN_BYTES = 4 << 10, MAX_BYTES = 16 << 20, ROUNDS = 3 };

/* Seconds of wall and of processor time (mean of the ranks) a call; the best of some rounds. */
static tp_status measure(struct comm *c, float *buf, int64_t n_bytes, double best[2],
                         struct tp_err *err)
{
    int calls = n_bytes > 1 << 20 ? 20 : n_bytes > 1 << 16 ? 100 : 300;
    tp_status st = TP_OK;

    best[0] = best[1] = 1e9;
    for (int round = 0; round < ROUNDS; round++) {
        double t[2];

        TP_TRY(comm_barrier(c, err));
        t[0] = clock_seconds(), t[1] = clock_cpu_seconds();
        for (int i = 0; i < calls; i++)
            TP_TRY(comm_all_reduce(c, buf, n_bytes / 4, COMM_F32, COMM_SUM, err));
        t[0] = clock_seconds() - t[0], t[1] = clock_cpu_seconds() - t[1];
        TP_TRY(comm_all_reduce(c, t, 2, COMM_F64, COMM_SUM, err));
        for (int k = 0; k < 2; k++)
            if (t[k] / comm_size(c) / calls < best[k])
                best[k] = t[k] / comm_size(c) / calls;
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

/* As in training: 33 reductions of 2 MiB a step, between them work that differs a little among the
 * ranks. *share is the processor time inside the calls as a part of the whole. */
static tp_status step_share(struct comm *c, float *buf, double *share, struct tp_err *err)
{
    double inside = 0, whole = 0;
    unsigned seed = (unsigned)comm_rank(c);
    tp_status st = TP_OK;

    for (int i = 0; i < 33; i++) {
        double start = clock_cpu_seconds(), before;

        seed = seed * 1664525u + 1013904223u;
        work_ms(10 + 2.0 * (seed >> 16) / 65536);
        before = clock_cpu_seconds();
        TP_TRY(comm_all_reduce(c, buf, 2 << 18, COMM_F32, COMM_SUM, err));
        inside += clock_cpu_seconds() - before;
        whole += clock_cpu_seconds() - start;
    }
    *share = inside / whole;
    TP_TRY(comm_all_reduce(c, share, 1, COMM_F64, COMM_SUM, err));
    *share /= comm_size(c);
done:
    return st;
}

static tp_status rows(struct comm *c, const char *way, struct tp_err *err)
{
    void *buf = NULL;
    tp_status st = TP_OK;

    TP_TRY(comm_alloc(&buf, c, MAX_BYTES, err));
    for (int64_t n = MIN_BYTES; n <= MAX_BYTES; n *= 4) {
        for (int64_t m = n; m <= 2 * n && m <= MAX_BYTES; m *= 2) {
            double t[2];

            if (m != n && m != 2 << 20)
                continue;
            TP_TRY(measure(c, buf, m, t, err));
            if (comm_rank(c) == 0)
                printf("%-6s %5d %9lld %11.1f %11.1f %9.2f\n", way, comm_size(c),
                       (long long)m / 1024, t[0] * 1e6, t[1] * 1e6, (double)m / t[0] * 1e-9);
            fflush(stdout);
        }
    }
    if (comm_size(c) == 2) {
        double share;

        TP_TRY(step_share(c, buf, &share, err));
        if (comm_rank(c) == 0)
            printf(
                "%-6s %5d 33 all-reduces of 2 MiB among 11 ms of work each: %.2f %% of cpu time\n",
                way, comm_size(c), share * 100);
    }
done:
    return st;
}

static int be_rank(const char *way)
{
    struct comm *world = NULL;
    struct tp_err err = { 0 };
    tp_status st = comm_init(&world, 1 << 28, &err);

    if (!st)
        st = rows(world, way, &err);
    if (st)
        fprintf(stderr, "bench_comm: %s\n", err.msg);
    comm_end(world, st);
    return tp_exit_code(st);
}

int main(int argc, char **argv)
{
    static const int sizes[] = { 2, 4, 8 };
    int rank, code = 0, size;
    struct tp_err err = { 0 };

    (void)argc;
    if (launch_is_mpi(&size))
        return be_rank(getenv("TP_HOST_RANKS") ? "mpi" : "mpirun");
    printf("all-reduce of floats, %ld cores; per call and rank\n"
           "%-6s %5s %9s %11s %11s %9s\n",
           sysconf(_SC_NPROCESSORS_ONLN), "way", "ranks", "KiB", "wall us", "cpu us", "GB/s");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && !code; i++) {
        tp_status st = launch_ranks(sizes[i], &rank, &code, &err);

        if (rank >= 0)
            return st ? tp_exit_code(st) : be_rank("shm");
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
