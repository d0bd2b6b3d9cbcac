/*
 * comm/mpi_world.h - what comm/mpi.c (collectives), comm/mpi_mail.c (messages) and comm/mpi_world.c
 * (the process) share; inside comm/ only.
 */
#ifndef COMM_MPI_WORLD_H
#define COMM_MPI_WORLD_H

#include <mpi.h>

#include "comm/backend.h"
#include "comm/shm.h"

/* world->process */
struct mpi_process {
    struct shm_job *job; /* of the ranks on this host; NULL: they do not share memory */
    bool threads;        /* MPI may be called by several at once */
    int host_rank;
    int host;                   /* the first world rank of the host; < 0, unique: no job */
    struct comm_memory *memory; /* of comm_alloc where there is no job */
};

/* c->impl where c->ops is comm_mpi_ops. */
struct mpi_comm {
    MPI_Comm comm;
    char *scratch;
    int64_t scratch_bytes;
    struct part *send, *recv;  /* [size] each, for exchange() */
    MPI_Request *requests;     /* [2 * size] */
    const void **rows;         /* [size] */
    struct outgoing *outgoing; /* small messages that may still be under way */
    struct outgoing *spare;    /* requests for posts to come */
};

enum {
    MPI_PIECE_BYTES = 256 << 20, /* of a message */
    MPI_TAG_INSIDE = 2,          /* of messages that make up a collective */
};

extern const struct comm_ops comm_mpi_ops;

/* Fill c->ops and c->impl for mine, which c then owns unless it is MPI_COMM_WORLD. */
tp_status mpi_attach(struct comm *c, MPI_Comm mine, struct tp_err *err);

/* Where all ranks of c, which has comm_mpi_ops, share memory: make that its way. Collective. */
tp_status mpi_share_host(struct comm *c, struct tp_err *err);

/* comm/mpi_mail.c */
tp_status mpi_gather(struct comm *c, const void *in, int64_t n_bytes, void **out, int64_t *sizes,
                     struct tp_err *err);
tp_status mpi_send(struct comm *c, const void *buf, int64_t n_bytes, int to, struct tp_err *err);
tp_status mpi_recv(struct comm *c, void *buf, int64_t n_bytes, int from, struct tp_err *err);
tp_status mpi_post(struct comm *c, const void *buf, int64_t n_bytes, int to,
                   struct comm_request *ticket, struct tp_err *err);
tp_status mpi_wait(struct comm *c, struct comm_request *ticket, struct tp_err *err);

/* Wait for what may be under way, and free what messages have left. */
void mpi_mail_clear(struct comm *c);

/* Fill err with MPI's own sentence about code; TP_E_COMM. */
tp_status mpi_fail(const struct comm *c, int code, const char *what, struct tp_err *err);

/* Return from the function, which has c and err, when an MPI call fails. */
#define MPI_TRY(call)                                  \
    do {                                               \
        int mpi_code_ = (call);                        \
        if (mpi_code_ != MPI_SUCCESS)                  \
            return mpi_fail(c, mpi_code_, #call, err); \
    } while (0)

#endif
