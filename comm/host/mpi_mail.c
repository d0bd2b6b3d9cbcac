/* comm/host/mpi_mail.c - see comm/host/mpi_mail.h. */
#include "comm/host/mpi_mail.h"

#include <stdlib.h>
#include <string.h>

#include "comm/host/mpi_group.h"

static int piece_at(int64_t at, int64_t n_bytes)
{
    return (int)(n_bytes - at < MPI_PIECE_BYTES ? n_bytes - at : MPI_PIECE_BYTES);
}

/* A spare record of an earlier message, or a new one; NULL: out of memory. */
static struct mpi_message *take_spare(struct mpi_group *m)
{
    struct mpi_message *x = m->spare;

    if (!x)
        return malloc(sizeof *x);
    m->spare = x->next;
    return x;
}

tp_status mpi_send(struct host_group *g, const void *buf, int64_t n_bytes, int to,
                   struct host_request *r, struct tp_err *err)
{
    struct mpi_group *m = g->impl;
    int64_t at = 0;

    r->to = to;
    r->parts = NULL;
    do { /* an empty message is sent too */
        struct mpi_message *x = take_spare(m);

        if (!x)
            return tp_fail(err, TP_E_NOMEM, "out of memory to send");
        x->next = r->parts;
        r->parts = x;
        MPI_TRY(MPI_Isend((const char *)buf + at, piece_at(at, n_bytes), MPI_BYTE, to,
                          MPI_TAG_MESSAGE, m->comm, &x->request));
        at += MPI_PIECE_BYTES;
    } while (at < n_bytes);
    return TP_OK;
}

tp_status mpi_wait(struct host_group *g, struct host_request *r, struct tp_err *err)
{
    struct mpi_group *m = g->impl;
    struct mpi_message *x;

    while ((x = r->parts)) {
        MPI_TRY(MPI_Wait(&x->request, MPI_STATUS_IGNORE));
        r->parts = x->next;
        x->next = m->spare;
        m->spare = x;
    }
    return TP_OK;
}

static tp_status recv_pieces(struct host_group *g, void *buf, int64_t n_bytes, int from, int tag,
                             struct tp_err *err)
{
    struct mpi_group *m = g->impl;
    int64_t at = 0;

    do {
        int want = piece_at(at, n_bytes), got = 0;
        MPI_Status status;

        MPI_TRY(MPI_Recv((char *)buf + at, want, MPI_BYTE, from, tag, m->comm, &status));
        MPI_TRY(MPI_Get_count(&status, MPI_BYTE, &got));
        if (got != want)
            return tp_fail(err, TP_E_INTERNAL, "rank %d sends %d bytes, and rank %d expects %d",
                           from, got, g->rank, want);
        at += MPI_PIECE_BYTES;
    } while (at < n_bytes);
    return TP_OK;
}

tp_status mpi_recv(struct host_group *g, void *buf, int64_t n_bytes, int from, struct tp_err *err)
{
    return recv_pieces(g, buf, n_bytes, from, MPI_TAG_MESSAGE, err);
}

/* ---- gathering ---- */

static tp_status send_part(struct host_group *g, const void *in, int64_t n_bytes,
                           struct tp_err *err)
{
    struct mpi_group *m = g->impl;

    for (int64_t at = 0; at < n_bytes; at += MPI_PIECE_BYTES)
        MPI_TRY(MPI_Send((const char *)in + at, piece_at(at, n_bytes), MPI_BYTE, 0, MPI_TAG_INSIDE,
                         m->comm));
    return TP_OK;
}

/* Receive the other ranks' parts after rank 0's own. */
static tp_status recv_parts(struct host_group *g, char *all, const int64_t *sizes,
                            struct tp_err *err)
{
    int64_t offset = sizes[0];
    tp_status st = TP_OK;

    for (int r = 1; r < g->size && !st; offset += sizes[r++])
        if (sizes[r])
            st = recv_pieces(g, all + offset, sizes[r], r, MPI_TAG_INSIDE, err);
    return st;
}

tp_status mpi_gather(struct host_group *g, const void *in, int64_t n_bytes, void **out,
                     int64_t *sizes, struct tp_err *err)
{
    struct mpi_group *m = g->impl;
    int64_t total = 0;
    char *all = NULL;
    int ok = 1;
    tp_status st = TP_OK;

    MPI_TRY(MPI_Gather(&n_bytes, 1, MPI_INT64_T, sizes, 1, MPI_INT64_T, 0, m->comm));
    if (g->rank == 0) {
        for (int r = 0; r < g->size; r++)
            total += sizes[r];
        all = malloc(total ? (size_t)total : 1);
        ok = all != NULL;
        if (all && n_bytes)
            memcpy(all, in, (size_t)n_bytes);
    }
    if (MPI_Bcast(&ok, 1, MPI_INT, 0, m->comm) != MPI_SUCCESS)
        st = tp_fail(err, TP_E_COMM, "rank %d of %d: MPI_Bcast failed", g->rank, g->size);
    else if (!ok) /* rank 0 has told all ranks whether it has memory */
        st = tp_fail(err, TP_E_NOMEM, "rank 0 is out of memory to gather in");
    if (!st)
        st = g->rank == 0 ? recv_parts(g, all, sizes, err) : send_part(g, in, n_bytes, err);
    if (st) {
        free(all);
        return st;
    }
    *out = all;
    return TP_OK;
}
