/*
 * tests/mpi/comm_fail.c - how failures end a job of mpirun: run by tests/cli/test_comm_mpi.py, and
 * here without an argument, where all is well.
 * ranks: 2
 *
 * agreed: one rank fails, all agree, rank 0 says so after a while; exit code 3.
 * alone:  the last rank fails while the others wait in a barrier; exit code 2.
 * killed: the last rank is killed while the others wait.
 */
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "comm/comm.h"

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "";
    const struct timespec half = { .tv_nsec = 500000000L };
    struct comm *world = NULL;
    struct tp_err err = { 0 };
    tp_status st = comm_init(&world, 1 << 20, &err);
    bool last;

    if (st) {
        fprintf(stderr, "%s\n", err.msg);
        return tp_exit_code(st);
    }
    last = comm_rank(world) == comm_size(world) - 1;
    if (last && !strcmp(how, "killed"))
        raise(SIGKILL);
    if (last && *how)
        st = tp_fail(&err, strcmp(how, "alone") ? TP_E_IO : TP_E_USAGE, "the disk is full");
    if (*how && strcmp(how, "agreed"))
        st = st ? st : comm_barrier(world, &err);
    else
        st = comm_agree(world, st, &err);
    if (st && comm_rank(world) == 0) {
        nanosleep(&half, NULL);
        fprintf(stderr, "%s\n", err.msg);
    }
    comm_end(world, st);
    return tp_exit_code(st);
}
