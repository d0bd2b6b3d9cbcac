/* comm/collective.c - see comm/collective.h: checks, counts, and communicators of one rank. */
#include "comm/collective.h"

#include <stdlib.h>

#include "comm/transport.h"

int comm_rank(const struct comm *c)
{
    return c->rank;
}

int comm_size(const struct comm *c)
{
    return c->size;
}

const struct comm_counts *comm_counts(const struct comm *c)
{
    return &c->counts;
}

tp_status comm_split(struct comm **out, struct comm *c, int color, int key, struct tp_err *err)
{
    struct comm *made = calloc(1, sizeof *made);
    bool is_in = false;
    tp_status st;

    if (!made)
        return tp_fail(err, TP_E_NOMEM, "out of memory for a communicator");
    made->transport = c->transport;
    made->world = c->world;
    st = c->transport->split(made, &is_in, c, color, key, err);
    if (st || !is_in) {
        free(made);
        if (!st)
            *out = NULL;
        return st;
    }
    made->next = c->world->comms;
    c->world->comms = made;
    *out = made;
    return TP_OK;
}

void comm_free(struct comm *c)
{
    struct comm **link;

    if (!c)
        return;
    for (link = &c->world->comms; *link != c; link = &(*link)->next)
        ;
    *link = c->next;
    for (struct comm_request *r = c->requests, *next; r; r = next) {
        next = r->next;
        c->transport->request_free(r);
        free(r);
    }
    c->transport->free(c);
    free(c);
}

/* ---- calls ---- */

static void count(struct comm *c, enum comm_kind kind, int64_t n, enum dtype type)
{
    c->counts.calls[kind]++;
    c->counts.bytes[kind] += n * dtype_bytes(type);
}

void comm_all_reduce(struct comm *c, struct device_queue *q, void *buf, int64_t n, enum dtype type,
                     enum comm_op op)
{
    const struct comm_call x = {
        .kind = COMM_ALL_REDUCE, .out = buf, .in = buf, .n = n, .type = type, .op = op
    };

    count(c, COMM_ALL_REDUCE, n, type);
    if (c->size > 1)
        c->transport->queue(c, q, &x);
}

void comm_all_gather(struct comm *c, struct device_queue *q, void *out, const void *in, int64_t n,
                     enum dtype type)
{
    const struct comm_call x = {
        .kind = COMM_ALL_GATHER, .out = out, .in = in, .n = n, .type = type
    };

    count(c, COMM_ALL_GATHER, n, type);
    if (c->size > 1)
        c->transport->queue(c, q, &x);
    else
        device_copy(q, out, in, n * dtype_bytes(type));
}

void comm_reduce_scatter(struct comm *c, struct device_queue *q, void *out, const void *in,
                         int64_t n, enum dtype type)
{
    const struct comm_call x = {
        .kind = COMM_REDUCE_SCATTER, .out = out, .in = in, .n = n, .type = type
    };

    count(c, COMM_REDUCE_SCATTER, n, type);
    if (c->size > 1)
        c->transport->queue(c, q, &x);
    else
        device_copy(q, out, in, n * dtype_bytes(type));
}

void comm_all_to_all(struct comm *c, struct device_queue *q, void *out, const void *in,
                     const struct comm_rows *rows)
{
    const struct comm_call x = { .kind = COMM_ALL_TO_ALL,
                                 .out = out,
                                 .in = in,
                                 .row_bytes = rows->row_bytes,
                                 .send_rows = rows->send,
                                 .recv_rows = rows->recv,
                                 .host_send = rows->host_send,
                                 .host_recv = rows->host_recv };

    count(c, COMM_ALL_TO_ALL, rows->counted * rows->row_bytes, DTYPE_U8);
    if (c->size > 1)
        c->transport->queue(c, q, &x);
    else
        device_copy(q, out, in, rows->counted * rows->row_bytes);
}

/* ---- messages ---- */

tp_status comm_request_open(struct comm_request **out, struct comm *c, enum comm_neighbour to,
                            struct tp_err *err)
{
    struct comm_request *r = calloc(1, sizeof *r);
    tp_status st;

    if (!r)
        return tp_fail(err, TP_E_NOMEM, "out of memory for a message");
    if ((st = c->transport->request_open(c, r, to, err))) {
        free(r);
        return st;
    }
    r->next = c->requests;
    c->requests = r;
    *out = r;
    return TP_OK;
}

/* Whether `peer` is another rank of c; else the device fails. */
static bool is_peer(const struct comm *c, struct device_queue *q, int peer, const char *what)
{
    struct tp_err err = { 0 };

    if (peer >= 0 && peer < c->size && peer != c->rank)
        return true;
    tp_fail(&err, TP_E_INTERNAL, "rank %d of %d: %s rank %d", c->rank, c->size, what, peer);
    device_fail(q->device, &err);
    return false;
}

void comm_send(struct comm *c, struct device_queue *q, const void *buf, int64_t n, enum dtype type,
               int to, struct comm_request *r)
{
    const struct comm_call x = {
        .kind = COMM_SEND, .in = buf, .n = n, .type = type, .peer = to, .request = r
    };

    if (!is_peer(c, q, to, "send to"))
        return;
    count(c, COMM_SEND, n, type);
    c->transport->queue(c, q, &x);
}

void comm_recv(struct comm *c, struct device_queue *q, void *buf, int64_t n, enum dtype type,
               int from)
{
    const struct comm_call x = {
        .kind = COMM_RECV, .out = buf, .n = n, .type = type, .peer = from
    };

    if (!is_peer(c, q, from, "receive from"))
        return;
    count(c, COMM_RECV, n, type);
    c->transport->queue(c, q, &x);
}

void comm_wait(struct comm *c, struct device_queue *q, struct comm_request *r)
{
    const struct comm_call x = { .kind = COMM_WAIT, .request = r };

    c->transport->queue(c, q, &x);
}

tp_status comm_exchange_open(struct comm *c, struct tp_err *err)
{
    return c->size > 1 && c->transport->exchange_open ? c->transport->exchange_open(c, err) : TP_OK;
}

void comm_exchange(struct comm *c, struct device_queue *q, void *out, const void *in, int64_t n,
                   enum dtype type)
{
    const struct comm_call x = {
        .kind = COMM_EXCHANGE, .out = out, .in = in, .n = n, .type = type
    };

    if (!is_peer(c, q, (c->rank + 1) % c->size, "exchange with"))
        return;
    count(c, COMM_SEND, n, type);
    count(c, COMM_RECV, n, type);
    c->transport->queue(c, q, &x);
}
