/* tests/unit/comm_shm.c - ranks that share memory: control messages, collectives, splits, counts.
 *
 * covers: comm/collective comm/control comm/cpu_transport comm/transport comm/world
 * covers: comm/host/host comm/host/shm comm/host/shm_collective comm/host/shm_job
 * covers: comm/host/shm_mail comm/host/shm_member comm/host/futex */
#include <criterion/criterion.h>

#include "tests/mpi/comm_properties.h"
#include "tests/unit/ranks.h"

struct property {
    int n;
    prop_fn fn;
    uint64_t seed;
};

static int check_property(struct comm_world *ranks, void *ctx)
{
    const struct property *p = ctx;
    struct rank_device d;
    struct tp_err err = { 0 };
    int wrong;

    if (rank_device_open(&d, ranks, &err))
        return wrong_unless(0, err.msg);
    wrong = wrong_unless(comm_size(d.all) == p->n && comm_local_size(ranks) == p->n, "size");
    wrong += p->fn(&d, p->seed);
    rank_device_close(&d);
    return wrong;
}

static void expect(int n, prop_fn fn, uint64_t seed)
{
    struct property p = { n, fn, seed };

    cr_assert_eq(run_ranks(n, 1 << 28, check_property, &p), 0, "%d ranks, seed %llu", n,
                 (unsigned long long)seed);
}

Test(comm_shm, every_collective_equals_the_reference_bit_for_bit)
{
    struct rng r = rng_start("comm_shm/collectives");

    for (int n = 1; n <= 8; n++)
        expect(n, prop_all_ranks, rng_next(&r));
}

Test(comm_shm, every_control_message_equals_the_reference)
{
    struct rng r = rng_start("comm_shm/control");

    for (int n = 1; n <= 8; n++)
        expect(n, prop_control, rng_next(&r));
}

static int grid_2x4(struct rank_device *d, uint64_t seed)
{
    return prop_grid(d, 4, seed);
}

static int grid_3x2(struct rank_device *d, uint64_t seed)
{
    return prop_grid(d, 2, seed);
}

Test(comm_shm, rows_and_columns_of_a_grid_are_independent)
{
    struct rng r = rng_start("comm_shm/grid");

    expect(8, grid_2x4, rng_next(&r));
    expect(6, grid_3x2, rng_next(&r));
}

/* Whether memory at p is private, from /proc/self/maps. */
static bool is_private(const void *p)
{
    FILE *f = fopen("/proc/self/maps", "re");
    unsigned long long from, to, at = (unsigned long long)(uintptr_t)p;
    char line[512], mode[5] = "";

    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "%llx-%llx %4s", &from, &to, mode) == 3 && from <= at && at < to)
            break;
    if (f)
        fclose(f);
    return mode[3] == 'p';
}

static int check_private(struct comm_world *ranks, void *ctx)
{
    const int n = *(const int *)ctx;
    struct rank_device d;
    struct tp_err err = { 0 };
    void *p;
    int wrong;

    if (rank_device_open(&d, ranks, &err) || comm_alloc(&p, ranks, 1 << 24, &err))
        return wrong_unless(0, err.msg);
    memset(p, 1, 1 << 24);
    wrong = wrong_unless(is_private(p) == (n == 1), "private memory");
    rank_device_close(&d);
    return wrong;
}

/* Private memory has large pages, which make its first access cheap. */
Test(comm_shm, a_rank_that_is_alone_has_private_memory)
{
    for (int n = 1; n <= 2; n++)
        cr_assert_eq(run_ranks(n, 1 << 28, check_private, &n), 0, "%d ranks", n);
}

Test(comm_shm, calls_and_bytes_are_counted_exactly)
{
    expect(1, prop_counts, 0);
    expect(4, prop_counts, 0);
}
