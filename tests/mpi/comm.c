/*
 * tests/mpi/comm.c - the properties of communicators under mpirun; the ranks share memory.
 * ranks: 1 2 3 4 8
 */
#include "tests/mpi/comm_properties.h"

int main(void)
{
    return prop_main("mpi/comm");
}
