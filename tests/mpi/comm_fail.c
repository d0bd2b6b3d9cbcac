/*
 * tests/mpi/comm_fail.c - how failures end a job of mpirun. tests/cli/test_comm_mpi.py runs it with
 * an argument that selects a failure; without an argument there is none.
 *
 * ranks: 2
 *
 * agreed: one rank fails, all agree, and rank 0 prints the message after a pause; exit code 3.
 * alone:  the last rank fails while the other ranks wait in a barrier; exit code 2.
 * killed: the last rank is killed while the other ranks wait.
 */
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "cli/rank_env.h"
#include "comm/control.h"
#include "comm/world.h"

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "";
    const struct timespec half = { .tv_nsec = 500000000L };
    struct comm_env env;
    struct comm_world *ranks = NULL;
    struct comm_control *c;
    struct tp_err err = { 0 };
    tp_status st;
    bool last;

    rank_env_read(&env);
    if ((st = comm_open(&ranks, &env, 1 << 20, &err))) {
        fprintf(stderr, "%s\n", err.msg);
        return tp_exit_code(st);
    }
    c = comm_control(ranks);
    last = control_rank(c) == control_size(c) - 1;
    if (last && !strcmp(how, "killed"))
        raise(SIGKILL);
    if (last && *how)
        st = tp_fail(&err, strcmp(how, "alone") ? TP_E_IO : TP_E_USAGE, "the disk is full");
    if (*how && strcmp(how, "agreed"))
        st = st ? st : control_barrier(c, &err);
    else
        st = control_agree(c, st, &err);
    if (st && control_rank(c) == 0) {
        nanosleep(&half, NULL);
        fprintf(stderr, "%s\n", err.msg);
    }
    comm_close(ranks, st);
    return tp_exit_code(st);
}
