/*
 * tests/mpi/comm_hosts.c - the properties of comm.c with two ranks per host. Some communicators are
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
