/*
 * tests/mpi/comm_plain.c - the properties of comm.c with one rank per host. MPI sends all data.
 *
 * ranks: 2 3 4 8
 *
 * covers: comm/host/mpi_collective comm/host/mpi_mail
 */
#include "tests/mpi/comm_properties.h"

int main(void)
{
    return prop_main("mpi/comm_plain", 1, NULL);
}
