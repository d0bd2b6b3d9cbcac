/*
 * tests/mpi/comm_hosts.c - the same where two ranks at a time are a host: some communicators are
 * within one, some span several.
 * ranks: 4 6
 *
 * covers: comm/mpi_world
 */
#include "tests/mpi/comm_properties.h"

int main(void)
{
    setenv("TP_HOST_RANKS", "2", 1);
    return prop_main("mpi/comm_hosts", NULL);
}
