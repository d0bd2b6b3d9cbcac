/* tests/unit/comm_shm.c - ranks that share memory: results, splits, counts.
 *
 * covers: comm/comm comm/shm_job comm/shm_world comm/futex comm/background */
#include <criterion/criterion.h>

#include "tests/mpi/comm_properties.h"
#include "tests/unit/ranks.h"

struct property {
    int n;
    int (*fn)(struct comm *world, uint64_t seed);
    uint64_t seed;
};

static int check_property(struct comm *world, void *ctx)
{
    const struct property *p = ctx;

    return wrong_unless(comm_size(world) == p->n && comm_local_size(world) == p->n, "world size") +
           p->fn(world, p->seed);
}

static void expect(int n, int (*fn)(struct comm *world, uint64_t seed), uint64_t seed)
{
    struct property p = { n, fn, seed };

    cr_assert_eq(run_ranks(n, 1 << 28, check_property, &p), 0, "%d ranks, seed %llu", n,
                 (unsigned long long)seed);
}

Test(comm_shm, every_collective_equals_the_reference_bit_for_bit)
{
    struct rng r = rng_start("comm_shm/collectives");

    for (int n = 1; n <= 8; n++)
        expect(n, prop_world, rng_next(&r));
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

    expect(8, grid_2x4, rng_next(&r));
    expect(6, grid_3x2, rng_next(&r));
}

static int counts(struct comm *world, uint64_t seed)
{
    (void)seed;
    return prop_counts(world);
}

Test(comm_shm, calls_and_bytes_are_counted_exactly)
{
    expect(1, counts, 0);
    expect(4, counts, 0);
}
