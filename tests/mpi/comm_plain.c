/*
 * tests/mpi/comm_plain.c - the same by MPI alone, as between hosts of one rank each.
 * ranks: 2 3 4 8
 *
 * covers: comm/mpi comm/mpi_mail
 */
#include "tests/mpi/comm_properties.h"

int main(void)
{
    setenv("TP_HOST_RANKS", "1", 1);
    return prop_main("mpi/comm_plain", NULL);
}
