/*
 * tests/mpi/comm.c - the properties of communicators under mpirun.
 * ranks: 1 2 3 4 8
 */
#include "tests/mpi/comm_properties.h"

int main(void)
{
    struct comm *world = NULL;
    struct tp_err err = { 0 };
    struct rng r = { 0 };
    int failures = 0;

    if (comm_init(&world, 1 << 28, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        return 3;
    }
    if (comm_rank(world) == 0)
        r = rng_start("mpi/comm");
    PROP_EXPECT(!comm_broadcast(world, &r, sizeof r, 0, &err), "%s", err.msg);
    PROP_EXPECT(getenv("OMPI_COMM_WORLD_SIZE") != NULL, "not started by mpirun");
    PROP_EXPECT(comm_local_size(world) == comm_size(world), "local size %d",
                comm_local_size(world));
    for (int i = 0; i < 3; i++)
        failures += prop_world(world, rng_next(&r));
    for (int columns = 1; columns <= comm_size(world); columns++)
        if (comm_size(world) % columns == 0)
            failures += prop_grid(world, columns, rng_next(&r));
    failures += prop_counts(world);
    comm_end(world, failures ? TP_E_CORRUPT : TP_OK);
    return failures > 0;
}
