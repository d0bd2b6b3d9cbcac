/*
 * tests/mpi/comm.c - the properties of communicators under mpirun; the ranks share memory.
 * ranks: 1 2 3 4 8
 *
 * covers: comm/shm_mail comm/self
 */
#include "tests/mpi/comm_properties.h"

/* A fallback to messages would pass every other property. */
static int prop_shared(struct comm *world)
{
    int64_t *own = NULL, *first;
    struct tp_err err = { 0 };
    int failures = 0;

    PROP_EXPECT(!comm_alloc((void **)&own, world, sizeof *own, &err), "%s", err.msg);
    *own = comm_rank(world) == 0 ? 4711 : 0;
    first = own;
    PROP_EXPECT(!comm_broadcast(world, &first, sizeof first, 0, &err), "%s", err.msg);
    PROP_EXPECT(*first == 4711, "rank %d sees %lld", comm_rank(world), (long long)*first);
    PROP_EXPECT(!comm_barrier(world, &err), "%s", err.msg);
    return failures;
}

int main(void)
{
    return prop_main("mpi/comm", prop_shared);
}
