/*
 * comm/mpi.c - collectives of ranks that do not share memory, over MPI; messages: comm/mpi_mail.c.
 *
 * MPI_Allreduce may add in any order, and in another one with other sizes or ranks, so it is not
 * used: small sums gather every rank's elements and add them along the tree of comm/reduce.h; large
 * ones send each rank its slice of all the others' buffers, add there, and send the sums round.
 * Both cost what MPI's own algorithms cost. Large data go by point-to-point pieces, whose counts
 * fit an int.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm/mpi_world.h"
#include "comm/reduce.h"

enum {
    SMALL_BYTES = 16 << 10,  /* of an all-reduce that gathers */
    SCRATCH_BYTES = 4 << 20, /* others' slices of a piece */
    NAP_MIN_NS = 10000,      /* of the background thread between two looks */
    NAP_MAX_NS = 200000,
    TAG_MESSAGE = 1, /* comm_send */
};

/* What goes to, or comes from, one rank. */
struct part {
    char *at;
    int64_t n_bytes;
};

tp_status mpi_fail(const struct comm *c, int code, const char *what, struct tp_err *err)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int len = 0;

    MPI_Error_string(code, text, &len);
    return tp_fail(err, TP_E_COMM, "rank %d of %d: %s failed: %s", c->rank, c->size, what, text);
}

static tp_status need_scratch(struct mpi_comm *m, int64_t n_bytes, struct tp_err *err)
{
    if (n_bytes <= m->scratch_bytes)
        return TP_OK;
    free(m->scratch);
    m->scratch_bytes = 0;
    if (!(m->scratch = aligned_alloc(64, (size_t)(n_bytes + 63) / 64 * 64)))
        return tp_fail(err, TP_E_NOMEM, "out of memory: %lld bytes for a collective",
                       (long long)n_bytes);
    m->scratch_bytes = n_bytes;
    return TP_OK;
}

static void handle_free(struct mpi_comm *m)
{
    if (!m)
        return;
    free(m->scratch);
    free(m->send);
    free(m->recv);
    free(m->requests);
    free(m->rows);
    free(m);
}

static struct mpi_comm *handle_new(int size)
{
    struct mpi_comm *m = calloc(1, sizeof *m);

    if (!m)
        return NULL;
    m->comm = MPI_COMM_NULL;
    m->send = calloc((size_t)size, sizeof *m->send);
    m->recv = calloc((size_t)size, sizeof *m->recv);
    m->requests = calloc((size_t)size * 2, sizeof *m->requests);
    m->rows = calloc((size_t)size, sizeof *m->rows);
    if (m->send && m->recv && m->requests && m->rows)
        return m;
    handle_free(m);
    return NULL;
}

/* Until n requests are done. A caller waits inside MPI; the background thread asks now and then and
 * sleeps in between, for MPI's own waiting takes a core. */
static tp_status wait_for_all(struct comm *c, int n, MPI_Request *requests, struct tp_err *err)
{
    struct timespec nap = { .tv_nsec = NAP_MIN_NS };
    int done = 0;

    if (!c->behind) {
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

/* Every rank's n_bytes to all, where they are few. in may be MPI_IN_PLACE. */
static tp_status gather_small(struct comm *c, void *out, const void *in, int64_t n_bytes,
                              struct tp_err *err)
{
    struct mpi_comm *m = c->impl;
    MPI_Request request;
    int n = (int)n_bytes, given = in == MPI_IN_PLACE ? 0 : n;
    MPI_Datatype type = in == MPI_IN_PLACE ? MPI_DATATYPE_NULL : MPI_BYTE;

    if (!c->behind) {
        MPI_TRY(MPI_Allgather(in, given, type, out, n, MPI_BYTE, m->comm));
        return TP_OK;
    }
    MPI_TRY(MPI_Iallgather(in, given, type, out, n, MPI_BYTE, m->comm, &request));
    return wait_for_all(c, 1, &request, err);
}

/* Every rank sends send[r] to rank r and gets recv[r] from it; this rank's own parts stay. */
static tp_status exchange(struct comm *c, struct tp_err *err)
{
    struct mpi_comm *m = c->impl;
    int n = 0;

    for (int r = 0; r < c->size; r++)
        if (r != c->rank && m->recv[r].n_bytes)
            MPI_TRY(MPI_Irecv(m->recv[r].at, (int)m->recv[r].n_bytes, MPI_BYTE, r, MPI_TAG_INSIDE,
                              m->comm, &m->requests[n++]));
    for (int i = 1; i < c->size; i++) {
        int r = (c->rank + i) % c->size; /* not all to rank 0 first */

        if (m->send[r].n_bytes)
            MPI_TRY(MPI_Isend(m->send[r].at, (int)m->send[r].n_bytes, MPI_BYTE, r, MPI_TAG_INSIDE,
                              m->comm, &m->requests[n++]));
    }
    return wait_for_all(c, n, m->requests, err);
}

static tp_status mpi_barrier(struct comm *c, struct tp_err *err)
{
    struct mpi_comm *m = c->impl;

    MPI_TRY(MPI_Barrier(m->comm));
    return TP_OK;
}

static int64_t at_most(int64_t n, int64_t limit)
{
    return n < limit ? n : limit;
}

static tp_status all_reduce_small(struct comm *c, void *buf, int64_t n, enum comm_type type,
                                  enum comm_op op, struct tp_err *err)
{
    struct mpi_comm *m = c->impl;
    int64_t n_bytes = n * comm_type_bytes(type);
    tp_status st = need_scratch(m, n_bytes * c->size, err);

    if (st || (st = gather_small(c, m->scratch, buf, n_bytes, err)))
        return st;
    for (int r = 0; r < c->size; r++)
        m->rows[r] = m->scratch + r * n_bytes;
    comm_reduce(&buf, 1, m->rows, c->size, n, type, op);
    return TP_OK;
}

/* n elements, of which rank r reduces those from each * r on. */
static tp_status all_reduce_piece(struct comm *c, char *buf, int64_t n, enum comm_type type,
                                  enum comm_op op, struct tp_err *err)
{
    struct mpi_comm *m = c->impl;
    int64_t width = comm_type_bytes(type), each = (n + c->size - 1) / c->size * width;
    struct part own = { 0 };
    void *dst;
    tp_status st;

    for (int r = 0; r < c->size; r++) {
        int64_t lo = at_most(r * each, n * width);

        m->send[r] = (struct part){ buf + lo, at_most(each, n * width - lo) };
    }
    own = m->send[c->rank];
    for (int r = 0; r < c->size; r++)
        m->recv[r] = (struct part){ m->scratch + r * each, own.n_bytes };
    if ((st = exchange(c, err)))
        return st;
    for (int r = 0; r < c->size; r++)
        m->rows[r] = r == c->rank ? own.at : m->recv[r].at;
    dst = own.at;
    comm_reduce(&dst, 1, m->rows, c->size, own.n_bytes / width, type, op);
    for (int r = 0; r < c->size; r++) {
        m->recv[r] = m->send[r];
        m->send[r] = own;
    }
    return exchange(c, err);
}

static tp_status mpi_all_reduce(struct comm *c, void *buf, int64_t n, enum comm_type type,
                                enum comm_op op, struct tp_err *err)
{
    int64_t width = comm_type_bytes(type), piece = SCRATCH_BYTES / width;
    tp_status st;

    if (n * width <= SMALL_BYTES)
        return n ? all_reduce_small(c, buf, n, type, op, err) : TP_OK;
    /* each rank's slice is rounded up by less than an element of each */
    if ((st = need_scratch(c->impl, SCRATCH_BYTES + c->size * width, err)))
        return st;
    for (int64_t at = 0; at < n && !st; at += piece)
        st = all_reduce_piece(c, (char *)buf + at * width, at_most(n - at, piece), type, op, err);
    return st;
}

static tp_status mpi_all_gather(struct comm *c, void *out, const void *in, int64_t n_bytes,
                                struct tp_err *err)
{
    struct mpi_comm *m = c->impl;
    char *own = (char *)out + c->rank * n_bytes;
    tp_status st = TP_OK;

    if (n_bytes && own != in)
        memmove(own, in, (size_t)n_bytes);
    if (n_bytes <= SMALL_BYTES)
        return gather_small(c, out, MPI_IN_PLACE, n_bytes, err);
    for (int64_t at = 0; at < n_bytes && !st; at += MPI_PIECE_BYTES) {
        int64_t len = at_most(n_bytes - at, MPI_PIECE_BYTES);

        for (int r = 0; r < c->size; r++) {
            m->send[r] = (struct part){ own + at, len };
            m->recv[r] = (struct part){ (char *)out + r * n_bytes + at, len };
        }
        st = exchange(c, err);
    }
    return st;
}

static tp_status mpi_reduce_scatter(struct comm *c, void *out, const void *in, int64_t n,
                                    enum comm_type type, struct tp_err *err)
{
    struct mpi_comm *m = c->impl;
    int64_t width = comm_type_bytes(type), piece = SCRATCH_BYTES / c->size / width;
    tp_status st;

    piece = piece > 0 ? piece : 1;
    if ((st = need_scratch(m, SCRATCH_BYTES + c->size * width, err)))
        return st;
    for (int64_t at = 0; at < n; at += piece) {
        int64_t len = at_most(n - at, piece);
        void *dst = (char *)out + at * width;

        for (int r = 0; r < c->size; r++) {
            m->send[r] = (struct part){ (char *)(uintptr_t)in + (r * n + at) * width, len * width };
            m->recv[r] = (struct part){ m->scratch + r * piece * width, len * width };
            m->rows[r] = r == c->rank ? m->send[r].at : m->recv[r].at;
        }
        if ((st = exchange(c, err)))
            return st;
        comm_reduce(&dst, 1, m->rows, c->size, len, type, COMM_SUM);
    }
    return TP_OK;
}

static tp_status mpi_broadcast(struct comm *c, void *buf, int64_t n_bytes, int root,
                               struct tp_err *err)
{
    struct mpi_comm *m = c->impl;

    for (int64_t at = 0; at < n_bytes; at += MPI_PIECE_BYTES)
        MPI_TRY(MPI_Bcast((char *)buf + at, (int)at_most(n_bytes - at, MPI_PIECE_BYTES), MPI_BYTE,
                          root, m->comm));
    return TP_OK;
}

static tp_status mpi_split(struct comm *out, struct comm *c, const int *members, int n_members,
                           struct tp_err *err)
{
    struct mpi_comm *m = c->impl;
    MPI_Comm mine;
    tp_status st;

    (void)n_members;
    MPI_TRY(MPI_Comm_split(m->comm, out ? members[0] : MPI_UNDEFINED, out ? out->rank : 0, &mine));
    if (!out)
        return TP_OK;
    if ((st = mpi_attach(out, mine, err)))
        return st;
    return mpi_share_host(out, err);
}

static void mpi_free(struct comm *c)
{
    struct mpi_comm *m = c->impl;

    if (!m)
        return;
    mpi_mail_clear(c);
    if (m->comm != MPI_COMM_WORLD)
        MPI_Comm_free(&m->comm);
    handle_free(m);
}

const struct comm_ops comm_mpi_ops = {
    .split = mpi_split,
    .free = mpi_free,
    .all_reduce = mpi_all_reduce,
    .all_gather = mpi_all_gather,
    .reduce_scatter = mpi_reduce_scatter,
    .broadcast = mpi_broadcast,
    .gather = mpi_gather,
    .send = mpi_send,
    .recv = mpi_recv,
    .post = mpi_post,
    .wait = mpi_wait,
    .barrier = mpi_barrier,
};

tp_status mpi_attach(struct comm *c, MPI_Comm mine, struct tp_err *err)
{
    struct mpi_comm *m = handle_new(c->size);

    if (!m)
        return tp_fail(err, TP_E_NOMEM, "out of memory for a communicator");
    m->comm = mine;
    c->ops = &comm_mpi_ops;
    c->impl = m;
    c->overlaps = ((struct mpi_process *)c->world->process)->threads;
    MPI_TRY(MPI_Comm_set_errhandler(mine, MPI_ERRORS_RETURN));
    return TP_OK;
}
