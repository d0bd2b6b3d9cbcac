/*
 * tests/mpi/comm_hosts.c - the same properties with two ranks per host: some communicators are
 * within one host, others span several.
 *
 * ranks: 4 6
 *
 * covers: comm/host/mpi comm/host/mpi_group
 */
#include "tests/mpi/comm_properties.h"

int main(void)
{
    return prop_main("mpi/comm_hosts", 2, NULL);
}
