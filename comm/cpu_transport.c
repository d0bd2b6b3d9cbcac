/* comm/cpu_transport.c - see comm/cpu_transport.h. */
#include "comm/cpu_transport.h"

#include <stdlib.h>

#include "comm/host/host.h"

/* comm->impl is a struct host_group, request->impl a struct host_request. */

static tp_status cpu_open(struct comm *all, const char id[COMM_ID_BYTES], struct tp_err *err)
{
    struct host_group *g;
    tp_status st = host_split(&g, host_all(all->world->process), 0, all->rank, err);

    (void)id;
    if (!st)
        all->impl = g;
    return st;
}

static tp_status cpu_split(struct comm *out, bool *made, struct comm *c, int color, int key,
                           struct tp_err *err)
{
    struct host_group *g;
    tp_status st = host_split(&g, c->impl, color, key, err);

    if (st)
        return st;
    *made = g != NULL;
    if (g) {
        out->impl = g;
        out->rank = g->rank;
        out->size = g->size;
    }
    return TP_OK;
}

static void cpu_free(struct comm *c)
{
    host_free(c->impl);
}

static tp_status cpu_alloc(struct comm_world *w, void **out, int64_t n_bytes, struct tp_err *err)
{
    tp_status st = w->process->ops->alloc(w->process, out, n_bytes, err);

    return st ? st : device_adopt(w->device, *out, n_bytes, err);
}

/* ---- calls ---- */

struct cpu_transport_call {
    struct comm *comm;
    struct comm_call call;
};

/* The calls with a request: send, or wait for a message that was sent. */
static tp_status call_request(struct host_group *g, const struct comm_call *x, struct tp_err *err)
{
    struct host_request *r = x->request->impl;
    tp_status st = TP_OK;

    if (x->kind == COMM_SEND)
        st = g->ops->send(g, x->in, x->n * dtype_bytes(x->type), x->peer, r, err);
    else if (r->pending)
        st = g->ops->wait(g, r, err);
    r->pending = x->kind == COMM_SEND && !st;
    return st;
}

/* All ranks of a ring send before they receive. */
static tp_status call_exchange(struct host_group *g, const struct comm_call *x, struct tp_err *err)
{
    int64_t n_bytes = x->n * dtype_bytes(x->type);
    struct host_request sent = { 0 };
    tp_status st;

    TP_TRY(g->ops->send(g, x->in, n_bytes, (g->rank + 1) % g->size, &sent, err));
    TP_TRY(g->ops->recv(g, x->out, n_bytes, (g->rank + g->size - 1) % g->size, err));
    TP_TRY(g->ops->wait(g, &sent, err));
done:
    return st;
}

static tp_status call_group(struct host_group *g, const struct comm_call *x, struct tp_err *err)
{
    enum tree_reduce_op op = x->op == COMM_SUM ? TREE_REDUCE_SUM : TREE_REDUCE_MAX;
    int64_t n_bytes = x->n * dtype_bytes(x->type);

    switch (x->kind) {
    case COMM_ALL_REDUCE:
        return g->ops->all_reduce(g, x->out, x->n, x->type, op, err);
    case COMM_ALL_GATHER:
        return g->ops->all_gather(g, x->out, x->in, n_bytes, err);
    case COMM_REDUCE_SCATTER:
        return g->ops->reduce_scatter(g, x->out, x->in, x->n, x->type, err);
    case COMM_ALL_TO_ALL:
        return g->ops->all_to_all(
            g, x->out, x->in, &(struct host_rows){ x->row_bytes, x->send_rows, x->recv_rows }, err);
    case COMM_RECV:
        return g->ops->recv(g, x->out, n_bytes, x->peer, err);
    case COMM_EXCHANGE:
        return call_exchange(g, x, err);
    default: /* COMM_SEND, COMM_WAIT */
        return call_request(g, x, err);
    }
}

/* In the main thread, the call counts as waiting for other ranks. In a queue's thread it does not,
 * because the main thread computes meanwhile. */
static tp_status run(struct device_queue *q, const void *args, struct tp_err *err)
{
    const struct cpu_transport_call *x = args;
    struct host_group *g = x->comm->impl;
    bool counts = !q->has_thread && x->call.kind != COMM_WAIT;
    tp_status st = host_begin(g, q->has_thread, err);

    if (st)
        return st;
    if (counts)
        transport_wait_begin(x->comm->world);
    st = call_group(g, &x->call, err);
    if (counts)
        transport_wait_end(x->comm->world);
    host_end(g);
    return st;
}

static void cpu_queue(struct comm *c, struct device_queue *q, const struct comm_call *call)
{
    const struct cpu_transport_call args = { c, *call };

    device_submit(q, &(struct device_operation){ run, &args, sizeof args, DEVICE_COLLECTIVE });
}

static tp_status cpu_request_open(struct comm *c, struct comm_request *r, enum comm_neighbour to,
                                  struct tp_err *err)
{
    (void)c;
    (void)to;
    r->impl = calloc(1, sizeof(struct host_request));
    return r->impl ? TP_OK : tp_fail(err, TP_E_NOMEM, "out of memory for a message");
}

static void cpu_request_free(struct comm_request *r)
{
    free(r->impl);
}

const struct comm_transport comm_cpu_transport = {
    .open = cpu_open,
    .split = cpu_split,
    .free = cpu_free,
    .alloc = cpu_alloc,
    .queue = cpu_queue,
    .request_open = cpu_request_open,
    .request_free = cpu_request_free,
    .promises = 1 << COMM_SUMS_ALONG_TREE,
};
