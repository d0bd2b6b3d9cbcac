/*
 * comm/host/mpi_group.h - a rank's handle of a group that exchanges messages by MPI. Only
 * comm/host/ uses this.
 */
#ifndef COMM_HOST_MPI_GROUP_H
#define COMM_HOST_MPI_GROUP_H

#include <mpi.h>

#include "comm/host/group.h"

enum {
    MPI_PIECE_BYTES = 256 << 20, /* most bytes of one MPI call: the count fits an int */
    MPI_TAG_MESSAGE = 1,         /* messages of host_group_ops.send */
    MPI_TAG_INSIDE = 2,          /* messages of collectives */
};

/* The bytes that are sent to, or received from, one rank. */
struct mpi_part {
    char *at;
    int64_t n_bytes;
};

/* A piece of a message that is being sent. */
struct mpi_message {
    struct mpi_message *next;
    MPI_Request request;
};

/* group->impl */
struct mpi_group {
    MPI_Comm comm;
    char *scratch;
    int64_t scratch_bytes;
    struct mpi_part *send, *recv; /* [size] each, for exchanges */
    MPI_Request *requests;        /* [2 * size] */
    const void **rows;            /* [size] */
    struct mpi_message *spare;    /* records for later messages; mpi_group_close frees them */
};

/* Fill g->impl for `comm`, which g then owns unless it is MPI_COMM_WORLD. TP_E_NOMEM. */
tp_status mpi_group_open(struct host_group *g, MPI_Comm comm, struct tp_err *err);
void mpi_group_close(struct host_group *g);

/* Make m->scratch at least n_bytes long; its contents are undefined. TP_E_NOMEM. */
tp_status mpi_group_scratch(struct mpi_group *m, int64_t n_bytes, struct tp_err *err);

/* Fill err with MPI's own text for the error code. Returns TP_E_COMM. */
tp_status mpi_group_fail(const struct host_group *g, int code, const char *what,
                         struct tp_err *err);

/* Return from the function, which has g and err, when an MPI call fails. */
#define MPI_TRY(call)                                        \
    do {                                                     \
        int mpi_code_ = (call);                              \
        if (mpi_code_ != MPI_SUCCESS)                        \
            return mpi_group_fail(g, mpi_code_, #call, err); \
    } while (0)

#endif
