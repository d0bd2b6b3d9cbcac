/*
 * comm/host/mpi_collective.c - see comm/host/mpi_collective.h.
 *
 * MPI_Allreduce is not used, because its order of additions may depend on sizes and ranks. Small
 * sums gather every rank's elements and add them along the tree of
 * kernels/cpu/tree_reduce.h. Large sums send each rank its slice of all buffers, add there, and
 * send the sums to all ranks. Both cost as much as MPI's own algorithms. Large data are sent in
 * pieces, so that each count fits an int.
 */
#include "comm/host/mpi_collective.h"

#include <string.h>
#include <time.h>

#include "comm/host/mpi_group.h"

enum {
    SMALL_BYTES = 16 << 10,  /* up to this size an all-reduce gathers */
    SCRATCH_BYTES = 4 << 20, /* other ranks' slices of a piece */
    NAP_MIN_NS = 10000,      /* sleep of a queue's thread between two polls */
    NAP_MAX_NS = 200000,
};

/* Wait until n requests are done. The main thread waits inside MPI. A queue's thread polls and
 * sleeps, because waiting inside MPI keeps a core busy. */
static tp_status wait_for_all(struct host_group *g, int n, MPI_Request *requests,
                              struct tp_err *err)
{
    struct timespec nap = { .tv_nsec = NAP_MIN_NS };
    int done = 0;

    if (!g->on_thread) {
        MPI_TRY(MPI_Waitall(n, requests, MPI_STATUSES_IGNORE));
        return TP_OK;
    }
    for (;;) {
        MPI_TRY(MPI_Testall(n, requests, &done, MPI_STATUSES_IGNORE));
        if (done)
            return TP_OK;
        nanosleep(&nap, NULL);
        nap.tv_nsec = nap.tv_nsec < NAP_MAX_NS ? 2 * nap.tv_nsec : NAP_MAX_NS;
    }
}

/* Gather every rank's n_bytes on all ranks, for small n_bytes. in may be MPI_IN_PLACE. */
static tp_status gather_small(struct host_group *g, void *out, const void *in, int64_t n_bytes,
                              struct tp_err *err)
{
    struct mpi_group *m = g->impl;
    MPI_Request request;
    int n = (int)n_bytes, given = in == MPI_IN_PLACE ? 0 : n;
    MPI_Datatype type = in == MPI_IN_PLACE ? MPI_DATATYPE_NULL : MPI_BYTE;

    if (!g->on_thread) {
        MPI_TRY(MPI_Allgather(in, given, type, out, n, MPI_BYTE, m->comm));
        return TP_OK;
    }
    MPI_TRY(MPI_Iallgather(in, given, type, out, n, MPI_BYTE, m->comm, &request));
    return wait_for_all(g, 1, &request, err);
}

/* Send send[r] to each other rank r and receive recv[r] from it. */
static tp_status exchange(struct host_group *g, struct tp_err *err)
{
    struct mpi_group *m = g->impl;
    int n = 0;

    for (int r = 0; r < g->size; r++)
        if (r != g->rank && m->recv[r].n_bytes)
            MPI_TRY(MPI_Irecv(m->recv[r].at, (int)m->recv[r].n_bytes, MPI_BYTE, r, MPI_TAG_INSIDE,
                              m->comm, &m->requests[n++]));
    for (int i = 1; i < g->size; i++) {
        int r = (g->rank + i) % g->size; /* so that not all ranks send to rank 0 first */

        if (m->send[r].n_bytes)
            MPI_TRY(MPI_Isend(m->send[r].at, (int)m->send[r].n_bytes, MPI_BYTE, r, MPI_TAG_INSIDE,
                              m->comm, &m->requests[n++]));
    }
    return wait_for_all(g, n, m->requests, err);
}

tp_status mpi_barrier(struct host_group *g, struct tp_err *err)
{
    struct mpi_group *m = g->impl;

    MPI_TRY(MPI_Barrier(m->comm));
    return TP_OK;
}

static int64_t at_most(int64_t n, int64_t limit)
{
    return n < limit ? n : limit;
}

static tp_status all_reduce_small(struct host_group *g, void *buf, int64_t n, enum dtype type,
                                  enum tree_reduce_op op, struct tp_err *err)
{
    struct mpi_group *m = g->impl;
    int64_t n_bytes = n * dtype_bytes(type);
    tp_status st = mpi_group_scratch(m, n_bytes * g->size, err);

    if (st || (st = gather_small(g, m->scratch, buf, n_bytes, err)))
        return st;
    for (int r = 0; r < g->size; r++)
        m->rows[r] = m->scratch + r * n_bytes;
    tree_reduce(&(struct tree_reduce){ &buf, 1, m->rows, g->size, type, op }, n);
    return TP_OK;
}

/* All-reduce n elements; rank r reduces those that begin at each * r. */
static tp_status all_reduce_piece(struct host_group *g, char *buf, int64_t n, enum dtype type,
                                  enum tree_reduce_op op, struct tp_err *err)
{
    struct mpi_group *m = g->impl;
    int64_t width = dtype_bytes(type), each = (n + g->size - 1) / g->size * width;
    struct mpi_part own = { 0 };
    void *dst;
    tp_status st;

    for (int r = 0; r < g->size; r++) {
        int64_t lo = at_most(r * each, n * width);

        m->send[r] = (struct mpi_part){ buf + lo, at_most(each, n * width - lo) };
    }
    own = m->send[g->rank];
    for (int r = 0; r < g->size; r++)
        m->recv[r] = (struct mpi_part){ m->scratch + r * each, own.n_bytes };
    if ((st = exchange(g, err)))
        return st;
    for (int r = 0; r < g->size; r++)
        m->rows[r] = r == g->rank ? own.at : m->recv[r].at;
    dst = own.at;
    tree_reduce(&(struct tree_reduce){ &dst, 1, m->rows, g->size, type, op }, own.n_bytes / width);
    for (int r = 0; r < g->size; r++) {
        m->recv[r] = m->send[r];
        m->send[r] = own;
    }
    return exchange(g, err);
}

tp_status mpi_all_reduce(struct host_group *g, void *buf, int64_t n, enum dtype type,
                         enum tree_reduce_op op, struct tp_err *err)
{
    int64_t width = dtype_bytes(type), piece = SCRATCH_BYTES / width;
    tp_status st;

    if (n * width <= SMALL_BYTES)
        return n ? all_reduce_small(g, buf, n, type, op, err) : TP_OK;
    /* rounding up adds less than one element to each rank's slice */
    if ((st = mpi_group_scratch(g->impl, SCRATCH_BYTES + g->size * width, err)))
        return st;
    for (int64_t at = 0; at < n && !st; at += piece)
        st = all_reduce_piece(g, (char *)buf + at * width, at_most(n - at, piece), type, op, err);
    return st;
}

tp_status mpi_all_gather(struct host_group *g, void *out, const void *in, int64_t n_bytes,
                         struct tp_err *err)
{
    struct mpi_group *m = g->impl;
    char *own = (char *)out + g->rank * n_bytes;
    tp_status st = TP_OK;

    if (n_bytes && own != in)
        memmove(own, in, (size_t)n_bytes);
    if (n_bytes <= SMALL_BYTES)
        return gather_small(g, out, MPI_IN_PLACE, n_bytes, err);
    for (int64_t at = 0; at < n_bytes && !st; at += MPI_PIECE_BYTES) {
        int64_t len = at_most(n_bytes - at, MPI_PIECE_BYTES);

        for (int r = 0; r < g->size; r++) {
            m->send[r] = (struct mpi_part){ own + at, len };
            m->recv[r] = (struct mpi_part){ (char *)out + r * n_bytes + at, len };
        }
        st = exchange(g, err);
    }
    return st;
}

/* What is left of a run of rows, from its byte `at` on: at most a piece. */
static struct mpi_part part_from(const void *x, const int32_t *rows, int64_t row_bytes, int64_t at)
{
    int64_t lo = rows[0] * row_bytes + at, left = rows[1] * row_bytes - lo;

    return (struct mpi_part){ (char *)(uintptr_t)x + lo,
                              left > 0 ? at_most(left, MPI_PIECE_BYTES) : 0 };
}

/* Each pair of ranks sends piece by piece, without regard to the other pairs. */
tp_status mpi_all_to_all(struct host_group *g, void *out, const void *in,
                         const struct host_rows *rows, struct tp_err *err)
{
    struct mpi_group *m = g->impl;
    const int32_t *own = rows->send + g->rank;
    int64_t n_bytes = rows->row_bytes, left = 1;
    tp_status st = TP_OK;

    memcpy((char *)out + rows->recv[g->rank] * n_bytes, (const char *)in + own[0] * n_bytes,
           (size_t)((own[1] - own[0]) * n_bytes));
    for (int64_t at = 0; left && !st; at += MPI_PIECE_BYTES) {
        left = 0;
        for (int r = 0; r < g->size; r++) {
            m->send[r] = part_from(in, rows->send + r, n_bytes, at);
            m->recv[r] = part_from(out, rows->recv + r, n_bytes, at);
            left += r == g->rank ? 0 : m->send[r].n_bytes + m->recv[r].n_bytes;
        }
        m->send[g->rank].n_bytes = m->recv[g->rank].n_bytes = 0;
        st = left ? exchange(g, err) : TP_OK;
    }
    return st;
}

tp_status mpi_reduce_scatter(struct host_group *g, void *out, const void *in, int64_t n,
                             enum dtype type, struct tp_err *err)
{
    struct mpi_group *m = g->impl;
    int64_t width = dtype_bytes(type), piece = SCRATCH_BYTES / g->size / width;
    tp_status st;

    piece = piece > 0 ? piece : 1;
    if ((st = mpi_group_scratch(m, SCRATCH_BYTES + g->size * width, err)))
        return st;
    for (int64_t at = 0; at < n; at += piece) {
        int64_t len = at_most(n - at, piece);
        void *dst = (char *)out + at * width;

        for (int r = 0; r < g->size; r++) {
            m->send[r] =
                (struct mpi_part){ (char *)(uintptr_t)in + (r * n + at) * width, len * width };
            m->recv[r] = (struct mpi_part){ m->scratch + r * piece * width, len * width };
            m->rows[r] = r == g->rank ? m->send[r].at : m->recv[r].at;
        }
        if ((st = exchange(g, err)))
            return st;
        tree_reduce(&(struct tree_reduce){ &dst, 1, m->rows, g->size, type, TREE_REDUCE_SUM }, len);
    }
    return TP_OK;
}

tp_status mpi_broadcast(struct host_group *g, void *buf, int64_t n_bytes, int root,
                        struct tp_err *err)
{
    struct mpi_group *m = g->impl;

    for (int64_t at = 0; at < n_bytes; at += MPI_PIECE_BYTES)
        MPI_TRY(MPI_Bcast((char *)buf + at, (int)at_most(n_bytes - at, MPI_PIECE_BYTES), MPI_BYTE,
                          root, m->comm));
    return TP_OK;
}
