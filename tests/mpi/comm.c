/*
 * tests/mpi/comm.c - the properties of communicators under mpirun, where the ranks share memory.
 *
 * ranks: 1 2 3 4 8
 *
 * covers: comm/host/shm_mail comm/host/self comm/host/mpi
 */
#include "tests/mpi/comm_properties.h"

/* All other properties hold also with messages, so check that the ranks share memory. */
static int prop_shared(struct rank_device *d, uint64_t seed)
{
    int64_t *own = NULL, *first;
    struct tp_err err = { 0 };
    int failures = 0;

    (void)seed;
    PROP_EXPECT(!comm_alloc((void **)&own, d->ranks, sizeof *own, &err), "%s", err.msg);
    *own = comm_rank(d->all) == 0 ? 4711 : 0;
    first = own;
    PROP_EXPECT(!control_broadcast(d->control, &first, sizeof first, 0, &err), "%s", err.msg);
    PROP_EXPECT(*first == 4711, "rank %d sees %lld", comm_rank(d->all), (long long)*first);
    PROP_EXPECT(!control_barrier(d->control, &err), "%s", err.msg);
    return failures;
}

int main(void)
{
    return prop_main("mpi/comm", 0, prop_shared);
}
