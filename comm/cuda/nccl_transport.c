/* comm/cuda/nccl_transport.c - see comm/cuda/nccl_transport.h. */
#include "comm/cuda/nccl_transport.h"

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdlib.h>
#include <string.h>

#include "comm/cuda/nccl_exchange.h"
#include "comm/cuda/nccl_failure.h"
#include "comm/cuda/nccl_lane.h"
#include "comm/cuda/nccl_watch.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_queue.h"

/* comm->impl. */
struct nccl_group {
    ncclComm_t comm;          /* NULL: only one rank */
    struct nccl_watch *watch; /* of comm; NULL: only one rank */
    struct nccl_lane_set lanes;
};

/* request->impl. */
struct nccl_request {
    cudaEvent_t sent;
    bool pending;
};

/* Let this thread's calls mean the GPU of c, and use its communicator, if it has one, until `end`.
 * Fails with the failure of the GPU. */
static tp_status begin(const struct comm *c, struct tp_err *err)
{
    const struct nccl_group *g = c->impl;

    return cuda_device_begin(c->world->device) && (!g || !g->watch || nccl_watch_begin(g->watch))
               ? TP_OK
               : cuda_device_failure(c->world->device, err);
}

static void end(const struct comm *c)
{
    const struct nccl_group *g = c->impl;

    if (g->watch)
        nccl_watch_end(g->watch);
}

/* This rank could not be connected with others, which may wait for it. Its device fails, so that
 * what is open is aborted, and nothing waits for them. Returns st. */
static tp_status give_up(const struct comm *c, tp_status st, const struct tp_err *err)
{
    if (st)
        device_fail(c->world->device, err);
    return st;
}

/* ---- communicators ---- */

static tp_status nccl_make_id(char id[COMM_ID_BYTES], struct tp_err *err)
{
    ncclUniqueId u;
    ncclResult_t r = ncclGetUniqueId(&u);

    _Static_assert(sizeof u <= COMM_ID_BYTES, "an id of NCCL fits");
    if (r != ncclSuccess)
        return nccl_fail(err, "making an id for the ranks", r);
    memcpy(id, &u, sizeof u);
    return TP_OK;
}

static tp_status group_new(struct comm *c, struct tp_err *err)
{
    struct nccl_group *g = calloc(1, sizeof *g);

    if (!g)
        return tp_fail(err, TP_E_NOMEM, "out of memory for a communicator");
    c->impl = g;
    return TP_OK;
}

static tp_status connect_all(struct comm *all, const char id[COMM_ID_BYTES], struct tp_err *err)
{
    struct nccl_group *g = all->impl;
    ncclUniqueId u;
    ncclResult_t r;
    tp_status st;

    if ((st = nccl_watch_open(&g->watch, all->world->device, err)))
        return st;
    memcpy(&u, id, sizeof u);
    if ((r = ncclCommInitRank(&g->comm, all->size, u, all->rank)) != ncclSuccess) {
        st = nccl_fail(err, "connecting the ranks", r);
    } else if (!(st = begin(all, err))) {
        st = nccl_watch_add(g->watch, g->comm, err);
        end(all);
    }
    if (st)
        nccl_watch_close(g->watch);
    return st;
}

static tp_status nccl_open(struct comm *all, const char id[COMM_ID_BYTES], struct tp_err *err)
{
    tp_status st;

    if ((st = begin(all, err)) || (st = group_new(all, err)))
        return st;
    if (all->size > 1 && (st = connect_all(all, id, err))) {
        free(all->impl);
        all->impl = NULL;
    }
    return give_up(all, st, err);
}

/* The communicator of a color, its rank and size. A communicator of one rank is not kept. */
static tp_status take_split(struct comm *out, ncclComm_t made, struct nccl_watch *watch,
                            struct tp_err *err)
{
    struct nccl_group *g;
    tp_status st = group_new(out, err);

    if (st)
        return st;
    g = out->impl;
    (void)ncclCommUserRank(made, &out->rank);
    (void)ncclCommCount(made, &out->size);
    if (out->size == 1) {
        (void)ncclCommDestroy(made);
        return TP_OK;
    }
    if ((st = nccl_watch_add(watch, made, err))) {
        free(g);
        out->impl = NULL;
        return st;
    }
    g->comm = made;
    g->watch = nccl_watch_share(watch);
    return TP_OK;
}

static tp_status nccl_split(struct comm *out, bool *made, struct comm *c, int color, int key,
                            struct tp_err *err)
{
    struct nccl_group *g = c->impl;
    ncclComm_t comm = NULL;
    ncclResult_t r;
    tp_status st;

    if ((st = begin(c, err)))
        return st;
    *made = color >= 0;
    if (!g->comm) { /* one rank */
        out->size = 1;
        return color >= 0 ? group_new(out, err) : TP_OK;
    }
    r = ncclCommSplit(g->comm, color >= 0 ? color : NCCL_SPLIT_NOCOLOR, key, &comm, NULL);
    if (r != ncclSuccess)
        st = nccl_fail(err, "a group of ranks", r);
    else if (comm)
        st = take_split(out, comm, g->watch, err);
    end(c);
    return give_up(c, st, err);
}

static void nccl_free(struct comm *c)
{
    struct nccl_group *g = c->impl;
    bool works = cuda_device_begin(c->world->device);

    nccl_lane_set_close(&g->lanes, works);
    if (works)
        nccl_watch_destroy(g->watch, g->comm);
    nccl_watch_close(g->watch);
    free(g);
}

static tp_status nccl_alloc(struct comm_world *w, void **out, int64_t n_bytes, struct tp_err *err)
{
    return device_alloc(w->device, out, n_bytes, err);
}

/* ---- calls ---- */

static struct nccl_exchange_ring ring_of(const struct comm *c)
{
    const struct nccl_group *g = c->impl;

    return (struct nccl_exchange_ring){ g->comm, c->rank, c->size };
}

static ncclDataType_t type_of(enum dtype type)
{
    switch (type) {
    case DTYPE_F32:
        return ncclFloat32;
    case DTYPE_BF16:
        return ncclBfloat16;
    case DTYPE_F64:
        return ncclFloat64;
    case DTYPE_I64:
        return ncclInt64;
    default:
        return ncclUint8;
    }
}

static void queue_send(struct comm *c, struct device_queue *q, const struct comm_call *x,
                       const struct nccl_lane *lane)
{
    struct nccl_group *g = c->impl;
    struct nccl_request *request = x->request->impl;

    cuda_queue_check(q, "an event", cudaEventRecord(g->lanes.queued, cuda_queue_stream(q)));
    cuda_queue_check(q, "a wait", cudaStreamWaitEvent(lane->stream, g->lanes.queued, 0));
    nccl_check(q, "a send",
               ncclSend(x->in, (size_t)x->n, type_of(x->type), 1, lane->comm, lane->stream));
    cuda_queue_check(q, "an event", cudaEventRecord(request->sent, lane->stream));
    request->pending = true;
}

static void queue_message(struct comm *c, struct device_queue *q, const struct comm_call *x)
{
    const struct nccl_group *g = c->impl;
    const struct nccl_lane *lane = nccl_lane_of(&g->lanes, c, x);
    struct tp_err err;

    if (!lane) {
        tp_fail(
            &err, TP_E_INTERNAL,
            "rank %d of %d: a message with rank %d, which is not a neighbour in the ring or has "
            "no request",
            c->rank, c->size, x->peer);
        device_fail(q->device, &err);
    } else if (x->kind == COMM_SEND) {
        queue_send(c, q, x, lane);
    } else {
        nccl_check(
            q, "a receive",
            ncclRecv(x->out, (size_t)x->n, type_of(x->type), 0, lane->comm, cuda_queue_stream(q)));
    }
}

static void queue_wait(struct device_queue *q, struct nccl_request *r)
{
    if (r->pending)
        cuda_queue_check(q, "a wait", cudaStreamWaitEvent(cuda_queue_stream(q), r->sent, 0));
    r->pending = false;
}

/* The bytes that begin with a row. */
static char *row_at(const struct comm_call *x, const void *p, int32_t row)
{
    return (char *)(uintptr_t)p + row * x->row_bytes;
}

/* One message for each other rank that gets rows, and one from each that sends some, all at once.
 * Both ranks of a pair know its number, so no message is empty. */
static void queue_messages_to_all(struct comm *c, struct device_queue *q, const struct comm_call *x)
{
    const struct nccl_group *g = c->impl;
    struct CUstream_st *s = cuda_queue_stream(q);

    nccl_check(q, "an all-to-all", ncclGroupStart());
    for (int r = 0; r < c->size; r++) {
        int64_t out = (x->host_send[r + 1] - x->host_send[r]) * x->row_bytes;
        int64_t in = (x->host_recv[r + 1] - x->host_recv[r]) * x->row_bytes;

        if (r != c->rank && out > 0)
            nccl_check(
                q, "a send of rows",
                ncclSend(row_at(x, x->in, x->host_send[r]), (size_t)out, ncclUint8, r, g->comm, s));
        if (r != c->rank && in > 0)
            nccl_check(
                q, "a receive of rows",
                ncclRecv(row_at(x, x->out, x->host_recv[r]), (size_t)in, ncclUint8, r, g->comm, s));
    }
    nccl_check(q, "an all-to-all", ncclGroupEnd());
}

static void queue_all_to_all(struct comm *c, struct device_queue *q, const struct comm_call *x)
{
    const int32_t *send = x->host_send, *recv = x->host_recv;
    struct tp_err err;

    if (!send || !recv) {
        tp_fail(&err, TP_E_INTERNAL, "NCCL needs the rows of an all-to-all on the host");
        device_fail(q->device, &err);
        return;
    }
    device_copy(q, row_at(x, x->out, recv[c->rank]), row_at(x, x->in, send[c->rank]),
                (send[c->rank + 1] - send[c->rank]) * x->row_bytes);
    queue_messages_to_all(c, q, x);
}

static void queue_exchange(const struct comm *c, struct device_queue *q, const struct comm_call *x)
{
    const struct nccl_exchange_ring ring = ring_of(c);
    const struct nccl_exchange e = { x->out, x->in, (size_t)x->n, type_of(x->type) };

    nccl_check(q, "an exchange", nccl_exchange_queue(&ring, &e, cuda_queue_stream(q)));
}

static void queue_call(struct comm *c, struct device_queue *q, const struct comm_call *x)
{
    const struct nccl_group *g = c->impl;
    ncclDataType_t type = type_of(x->type);
    struct CUstream_st *s = cuda_queue_stream(q);

    switch (x->kind) {
    case COMM_ALL_REDUCE:
        nccl_check(q, "an all-reduce",
                   ncclAllReduce(x->in, x->out, (size_t)x->n, type,
                                 x->op == COMM_SUM ? ncclSum : ncclMax, g->comm, s));
        break;
    case COMM_ALL_GATHER:
        nccl_check(q, "an all-gather",
                   ncclAllGather(x->in, x->out, (size_t)x->n, type, g->comm, s));
        break;
    case COMM_REDUCE_SCATTER:
        nccl_check(q, "a reduce-scatter",
                   ncclReduceScatter(x->in, x->out, (size_t)x->n, type, ncclSum, g->comm, s));
        break;
    case COMM_WAIT:
        queue_wait(q, x->request->impl);
        break;
    case COMM_ALL_TO_ALL:
        queue_all_to_all(c, q, x);
        break;
    case COMM_EXCHANGE:
        queue_exchange(c, q, x);
        break;
    default:
        queue_message(c, q, x);
    }
}

/* A queue of another device belongs to a step that only counts its calls. One rank alone sends
 * nothing. */
static void nccl_queue(struct comm *c, struct device_queue *q, const struct comm_call *x)
{
    const struct nccl_group *g = c->impl;

    if (q->device != c->world->device || !g->watch || !cuda_queue_begin(q) ||
        !nccl_watch_begin(g->watch))
        return;
    queue_call(c, q, x);
    nccl_watch_end(g->watch);
}

/* Open the lanes of messages to a neighbour, unless they are open. */
static tp_status open_lanes(struct comm *c, enum comm_neighbour to, struct tp_err *err)
{
    struct nccl_group *g = c->impl;
    tp_status st;

    if (c->size == 1 || nccl_lane_set_has(&g->lanes, c, to))
        return TP_OK;
    if ((st = begin(c, err)))
        return st;
    st = nccl_lane_set_open(&g->lanes, c, to, g->comm, g->watch, err);
    end(c);
    if (!st)
        st = nccl_lane_set_wait(&g->lanes, err);
    return give_up(c, st, err);
}

static tp_status nccl_request_open(struct comm *c, struct comm_request *r, enum comm_neighbour to,
                                   struct tp_err *err)
{
    struct nccl_request *request;
    cudaError_t e;
    tp_status st;

    if ((st = open_lanes(c, to, err)) || (st = begin(c, err)))
        return st;
    end(c);
    if (!(request = calloc(1, sizeof *request)))
        return tp_fail(err, TP_E_NOMEM, "out of memory for a message");
    if ((e = cudaEventCreateWithFlags(&request->sent, cudaEventDisableTiming)) != cudaSuccess) {
        free(request);
        return nccl_fail_cuda(err, "an event", e);
    }
    r->impl = request;
    return TP_OK;
}

static void nccl_request_free(struct comm_request *r)
{
    struct nccl_request *request = r->impl;

    (void)cudaEventDestroy(request->sent);
    free(request);
}

static tp_status nccl_ring_open(struct comm *c, struct tp_err *err)
{
    const struct nccl_exchange_ring ring = ring_of(c);
    struct nccl_exchange_first first;
    tp_status st = begin(c, err);

    if (st)
        return st;
    st = nccl_exchange_first_queue(&first, &ring, err);
    end(c); /* while this thread waits, the communicators are watched */
    return give_up(c, nccl_exchange_first_wait(&first, st, err), err);
}

const struct comm_transport comm_nccl_transport = {
    .make_id = nccl_make_id,
    .open = nccl_open,
    .split = nccl_split,
    .free = nccl_free,
    .alloc = nccl_alloc,
    .queue = nccl_queue,
    .request_open = nccl_request_open,
    .request_free = nccl_request_free,
    .exchange_open = nccl_ring_open,
};
