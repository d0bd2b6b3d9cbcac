/*
 * tests/mpi/comm_hosts.c - the same where two ranks at a time are a host: some communicators are
 * within one, some span several.
 * ranks: 4 6
 *
 * covers: comm/host/mpi comm/host/mpi_group
 */
#include "tests/mpi/comm_properties.h"

int main(void)
{
    return prop_main("mpi/comm_hosts", 2, NULL);
}
