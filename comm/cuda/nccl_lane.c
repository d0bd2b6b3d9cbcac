/* comm/cuda/nccl_lane.c - see comm/cuda/nccl_lane.h. */
#include "comm/cuda/nccl_lane.h"

#include "comm/cuda/nccl_failure.h"
#include "device/cuda/cuda_queue.h"

/* Edge e of a ring is between e and e + 1. A rank has at most one edge of each set. */
static int edge_set(int e, int size)
{
    return size % 2 && e == size - 1 ? 2 : e % 2;
}

/* In a ring of two ranks the next rank is also the previous one. */
static bool is_up(const struct comm *c, enum comm_neighbour to)
{
    return to == COMM_NEXT || c->size == 2;
}

static enum nccl_lane_name name_of(bool up, bool sends)
{
    if (up)
        return sends ? NCCL_LANE_UP_OUT : NCCL_LANE_UP_IN;
    return sends ? NCCL_LANE_DOWN_OUT : NCCL_LANE_DOWN_IN;
}

enum { BYTE_STEP = 16 }; /* from the byte of a lane to that of the next one */

/* Send a byte from rank 0 of a lane to rank 1. In the first message NCCL connects the ranks, and
 * its call does not return until the other rank makes its own: in a ring where all ranks send
 * before they receive, all would wait for ever. nccl_lane_set_wait waits until the byte is
 * there. */
static tp_status send_first(const struct nccl_lane *lane, bool sends, void *byte,
                            struct tp_err *err)
{
    cudaError_t e = cudaMemsetAsync(byte, 0, 1, lane->stream);
    ncclResult_t r;

    if (e != cudaSuccess)
        return nccl_fail_cuda(err, "a byte", e);
    r = sends ? ncclSend(byte, 1, ncclUint8, 1, lane->comm, lane->stream)
              : ncclRecv(byte, 1, ncclUint8, 0, lane->comm, lane->stream);
    return r == ncclSuccess ? TP_OK : nccl_fail(err, "the first message to a neighbour", r);
}

/* Connect the ends of the edges of a set, in one direction. Collective over c, whose communicator
 * is `all`. As a rank has one edge of a set, no two ranks wait for each other. */
static tp_status connect_set(struct nccl_lane_set *l, const struct comm *c, ncclComm_t all, int set,
                             bool up, struct tp_err *err)
{
    int before = (c->rank + c->size - 1) % c->size;
    bool is_lower = edge_set(c->rank, c->size) == set; /* this rank's edge to the next one */
    bool is_upper = edge_set(before, c->size) == set;
    int color = is_lower ? c->rank : is_upper ? before : NCCL_SPLIT_NOCOLOR;
    bool sends = is_lower == up;
    enum nccl_lane_name name = name_of(up, sends);
    struct nccl_lane *lane = &l->lane[name];
    ncclComm_t made = NULL;
    ncclResult_t r = ncclCommSplit(all, color, sends ? 0 : 1, &made, NULL);
    cudaError_t e;

    if (r != ncclSuccess)
        return nccl_fail(err, "connecting neighbours", r);
    if (!made)
        return TP_OK;
    if (nccl_watch_add(l->watch, made, err))
        return err->status;
    lane->comm = made;
    e = (cudaError_t)cuda_queue_open_stream(&lane->stream, DEVICE_QUEUE_COMM);
    if (e != cudaSuccess)
        return nccl_fail_cuda(err, "a stream", e);
    return send_first(lane, sends, (char *)l->bytes + name * BYTE_STEP, err);
}

bool nccl_lane_set_has(const struct nccl_lane_set *l, const struct comm *c, enum comm_neighbour to)
{
    return l->lane[name_of(is_up(c, to), true)].comm;
}

/* What all lanes share. */
static tp_status open_shared(struct nccl_lane_set *l, struct nccl_watch *w, struct tp_err *err)
{
    cudaError_t e = cudaSuccess;

    l->watch = w;
    if (!l->bytes && (e = cudaMalloc(&l->bytes, NCCL_LANES * BYTE_STEP)) != cudaSuccess)
        return nccl_fail_cuda(err, "memory", e);
    if (!l->queued)
        e = cudaEventCreateWithFlags(&l->queued, cudaEventDisableTiming);
    return e == cudaSuccess ? TP_OK : nccl_fail_cuda(err, "an event", e);
}

tp_status nccl_lane_set_open(struct nccl_lane_set *l, const struct comm *c, enum comm_neighbour to,
                             ncclComm_t all, struct nccl_watch *w, struct tp_err *err)
{
    int n_sets = c->size % 2 ? 3 : 2;
    tp_status st = open_shared(l, w, err);

    for (int set = 0; set < n_sets && !st; set++)
        st = connect_set(l, c, all, set, is_up(c, to), err);
    return st;
}

/* Later messages are received by queues, on streams of their own. */
static void end_stream(struct nccl_lane *lane)
{
    (void)cudaStreamDestroy(lane->stream);
    lane->stream = NULL;
}

tp_status nccl_lane_set_wait(struct nccl_lane_set *l, struct tp_err *err)
{
    cudaError_t e = cudaSuccess;

    for (int i = 0; i < NCCL_LANES && e == cudaSuccess; i++) {
        if (l->lane[i].stream)
            e = cudaStreamSynchronize(l->lane[i].stream);
        if (l->lane[i].stream && e == cudaSuccess &&
            (i == NCCL_LANE_UP_IN || i == NCCL_LANE_DOWN_IN))
            end_stream(&l->lane[i]);
    }
    return e == cudaSuccess ? TP_OK : nccl_fail_cuda(err, "the first message to a neighbour", e);
}

const struct nccl_lane *nccl_lane_of(const struct nccl_lane_set *l, const struct comm *c,
                                     const struct comm_call *x)
{
    bool is_next = x->peer == (c->rank + 1) % c->size;
    bool is_previous = x->peer == (c->rank + c->size - 1) % c->size;
    bool sends = x->kind == COMM_SEND;
    const struct nccl_lane *lane = &l->lane[name_of(sends ? is_next : is_previous, sends)];

    return lane->comm && (is_next || is_previous) ? lane : NULL;
}

/* NCCL destroys a communicator when both its ranks do, so one lane after the other would wait all
 * around the ring. In a group it destroys each in a thread of its own. */
static void destroy_all(struct nccl_lane_set *l)
{
    (void)ncclGroupStart();
    for (int i = 0; i < NCCL_LANES; i++)
        nccl_watch_destroy(l->watch, l->lane[i].comm);
    (void)ncclGroupEnd();
}

void nccl_lane_set_close(struct nccl_lane_set *l, bool works)
{
    for (int i = 0; i < NCCL_LANES && works; i++)
        if (l->lane[i].stream)
            (void)cudaStreamSynchronize(l->lane[i].stream);
    if (works && l->watch)
        destroy_all(l);
    for (int i = 0; i < NCCL_LANES && works; i++)
        if (l->lane[i].stream)
            end_stream(&l->lane[i]);
    if (works)
        (void)cudaFree(l->bytes);
    if (l->queued)
        (void)cudaEventDestroy(l->queued);
}
