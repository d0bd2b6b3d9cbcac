/* tests/unit/comm_shm.c - ranks that share memory: results, splits, counts. */
#include <criterion/criterion.h>
#include <unistd.h>

#include "comm/comm.h"
#include "comm/launch.h"
#include "tests/mpi/comm_properties.h"

typedef int (*rank_fn)(struct comm *world, uint64_t seed);

/* Run fn in n ranks; all must succeed. */
static void run_ranks(int n, rank_fn fn, uint64_t seed)
{
    struct comm *world = NULL;
    struct tp_err err = { 0 };
    int rank, code = 0, failures;
    tp_status st = launch_ranks(n, &rank, &code, &err);

    if (rank < 0) {
        cr_assert_eq(st, TP_OK, "%d ranks, seed %llu: %s", n, (unsigned long long)seed, err.msg);
        cr_assert_eq(code, 0, "%d ranks, seed %llu: exit code %d", n, (unsigned long long)seed,
                     code);
        return;
    }
    if (st || comm_init(&world, 1 << 28, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        _exit(3);
    }
    failures = comm_rank(world) != rank || comm_size(world) != n || comm_local_size(world) != n;
    failures += fn(world, seed);
    comm_end(world, failures ? TP_E_NO : TP_OK);
    _exit(failures > 0);
}

Test(comm_shm, every_collective_equals_the_reference_bit_for_bit)
{
    struct rng r = rng_start("comm_shm/collectives");

    for (int n = 1; n <= 8; n++)
        run_ranks(n, prop_world, rng_next(&r));
}

static int grid_2x4(struct comm *world, uint64_t seed)
{
    return prop_grid(world, 4, seed);
}

static int grid_3x2(struct comm *world, uint64_t seed)
{
    return prop_grid(world, 2, seed);
}

Test(comm_shm, rows_and_columns_of_a_grid_work_at_once)
{
    struct rng r = rng_start("comm_shm/grid");

    run_ranks(8, grid_2x4, rng_next(&r));
    run_ranks(6, grid_3x2, rng_next(&r));
}

static int counts(struct comm *world, uint64_t seed)
{
    (void)seed;
    return prop_counts(world);
}

Test(comm_shm, calls_and_bytes_are_counted_exactly)
{
    run_ranks(1, counts, 0);
    run_ranks(4, counts, 0);
}
