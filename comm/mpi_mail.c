/*
 * comm/mpi_mail.c - messages between two ranks over MPI, and gathering parts of any size, which is
 * made of them (comm/mpi_world.h).
 *
 * Large data go in pieces, whose counts fit an int.
 */
#include <stdlib.h>
#include <string.h>

#include "comm/mpi_world.h"

enum {
    BUFFERED_BYTES = 64 << 10, /* messages up to this never wait for their receiver */
    TAG_MESSAGE = 1,           /* comm_send */
};

/* A message under way, in a copy of our own; or a posted one, which has no bytes here. */
struct outgoing {
    struct outgoing *next;
    MPI_Request request;
    char bytes[];
};

static int64_t at_most(int64_t n, int64_t limit)
{
    return n < limit ? n : limit;
}

static tp_status send_pieces(struct comm *c, const void *buf, int64_t n_bytes, int to, int tag,
                             struct tp_err *err)
{
    struct mpi_comm *m = c->impl;

    for (int64_t at = 0; at < n_bytes; at += MPI_PIECE_BYTES)
        MPI_TRY(MPI_Send((const char *)buf + at, (int)at_most(n_bytes - at, MPI_PIECE_BYTES),
                         MPI_BYTE, to, tag, m->comm));
    return TP_OK;
}

static tp_status recv_pieces(struct comm *c, void *buf, int64_t n_bytes, int from, int tag,
                             struct tp_err *err)
{
    struct mpi_comm *m = c->impl;

    for (int64_t at = 0; at < n_bytes; at += MPI_PIECE_BYTES) {
        int want = (int)at_most(n_bytes - at, MPI_PIECE_BYTES), got = 0;
        MPI_Status status;

        MPI_TRY(MPI_Recv((char *)buf + at, want, MPI_BYTE, from, tag, m->comm, &status));
        MPI_TRY(MPI_Get_count(&status, MPI_BYTE, &got));
        if (got != want)
            return tp_fail(err, TP_E_INTERNAL, "rank %d sends %d bytes, and rank %d expects %d",
                           from, got, c->rank, want);
    }
    return TP_OK;
}

/* The other ranks' parts, after rank 0's own. */
static tp_status gather_parts(struct comm *c, char *all, const int64_t *sizes, struct tp_err *err)
{
    int64_t offset = sizes[0];
    tp_status st = TP_OK;

    for (int r = 1; r < c->size && !st; offset += sizes[r++])
        st = recv_pieces(c, all + offset, sizes[r], r, MPI_TAG_INSIDE, err);
    return st;
}

tp_status mpi_gather(struct comm *c, const void *in, int64_t n_bytes, void **out, int64_t *sizes,
                     struct tp_err *err)
{
    struct mpi_comm *m = c->impl;
    int64_t total = 0;
    char *all = NULL;
    int ok = 1;
    tp_status st;

    MPI_TRY(MPI_Gather(&n_bytes, 1, MPI_INT64_T, sizes, 1, MPI_INT64_T, 0, m->comm));
    if (c->rank == 0) {
        for (int r = 0; r < c->size; r++)
            total += sizes[r];
        all = malloc(total ? (size_t)total : 1);
        ok = all != NULL;
        if (all && n_bytes)
            memcpy(all, in, (size_t)n_bytes);
    }
    st = comm_mpi_ops.broadcast(c, &ok, sizeof ok, 0, err); /* all learn whether there is room */
    if (!st && !ok)
        st = tp_fail(err, TP_E_NOMEM, "rank 0 is out of memory to gather in");
    if (!st)
        st = c->rank == 0 ? gather_parts(c, all, sizes, err)
                          : send_pieces(c, in, n_bytes, 0, MPI_TAG_INSIDE, err);
    if (st) {
        free(all);
        return st;
    }
    *out = all;
    return TP_OK;
}

/* Forget the messages that have arrived; wait for all if so asked. */
static tp_status outgoing_clear(struct comm *c, bool wait, struct tp_err *err)
{
    struct mpi_comm *m = c->impl;
    struct outgoing **link = &m->outgoing;

    while (*link) {
        struct outgoing *o = *link;
        int done = 1;

        if (wait)
            MPI_TRY(MPI_Wait(&o->request, MPI_STATUS_IGNORE));
        else
            MPI_TRY(MPI_Test(&o->request, &done, MPI_STATUS_IGNORE));
        if (done) {
            *link = o->next;
            free(o);
        } else {
            link = &o->next;
        }
    }
    return TP_OK;
}

tp_status mpi_send(struct comm *c, const void *buf, int64_t n_bytes, int to, struct tp_err *err)
{
    struct mpi_comm *m = c->impl;
    struct outgoing *o;
    tp_status st;

    if (n_bytes > BUFFERED_BYTES)
        return send_pieces(c, buf, n_bytes, to, TAG_MESSAGE, err);
    if ((st = outgoing_clear(c, false, err)))
        return st;
    if (!(o = malloc(sizeof *o + (size_t)n_bytes)))
        return tp_fail(err, TP_E_NOMEM, "out of memory: %lld bytes to send", (long long)n_bytes);
    if (n_bytes)
        memcpy(o->bytes, buf, (size_t)n_bytes);
    o->next = m->outgoing;
    m->outgoing = o;
    o->request = MPI_REQUEST_NULL;
    MPI_TRY(MPI_Isend(o->bytes, (int)n_bytes, MPI_BYTE, to, TAG_MESSAGE, m->comm, &o->request));
    return TP_OK;
}

tp_status mpi_recv(struct comm *c, void *buf, int64_t n_bytes, int from, struct tp_err *err)
{
    struct mpi_comm *m = c->impl;

    if (n_bytes)
        return recv_pieces(c, buf, n_bytes, from, TAG_MESSAGE, err);
    MPI_TRY(MPI_Recv(buf, 0, MPI_BYTE, from, TAG_MESSAGE, m->comm, MPI_STATUS_IGNORE));
    return TP_OK;
}

/* A request that an earlier message has left, or a new one; NULL: memory is out. */
static struct outgoing *take_spare(struct mpi_comm *m)
{
    struct outgoing *o = m->spare;

    if (!o)
        return malloc(sizeof *o);
    m->spare = o->next;
    return o;
}

/* A request a piece, in a list that the ticket holds. */
tp_status mpi_post(struct comm *c, const void *buf, int64_t n_bytes, int to,
                   struct comm_request *ticket, struct tp_err *err)
{
    struct mpi_comm *m = c->impl;

    ticket->requests = NULL;
    for (int64_t at = 0; at < n_bytes; at += MPI_PIECE_BYTES) {
        struct outgoing *o = take_spare(m);

        if (!o)
            return tp_fail(err, TP_E_NOMEM, "out of memory to send");
        o->next = ticket->requests;
        ticket->requests = o;
        MPI_TRY(MPI_Isend((const char *)buf + at, (int)at_most(n_bytes - at, MPI_PIECE_BYTES),
                          MPI_BYTE, to, TAG_MESSAGE, m->comm, &o->request));
    }
    return TP_OK;
}

tp_status mpi_wait(struct comm *c, struct comm_request *ticket, struct tp_err *err)
{
    struct mpi_comm *m = c->impl;
    struct outgoing *o;

    while ((o = ticket->requests)) {
        MPI_TRY(MPI_Wait(&o->request, MPI_STATUS_IGNORE));
        ticket->requests = o->next;
        o->next = m->spare;
        m->spare = o;
    }
    return TP_OK;
}

void mpi_mail_clear(struct comm *c)
{
    struct mpi_comm *m = c->impl;
    struct tp_err err;

    outgoing_clear(c, true, &err);
    for (struct outgoing *o = m->spare, *next; o; o = next) {
        next = o->next;
        free(o);
    }
    m->spare = NULL;
}
