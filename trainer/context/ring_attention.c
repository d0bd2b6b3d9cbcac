/* trainer/context/ring_attention.c - see trainer/context/ring_attention.h. */
#include "trainer/context/ring_attention.h"

#include <stddef.h>

tp_status ring_attention_open(struct ring_buffers *r, const struct ring_group *g,
                              struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int i = 0; i < 2 && comm_size(g->cp) > 1 && !st; i++) {
        st = comm_request_open(&r->kv_sent[i], g->cp, err);
        if (!st)
            st = comm_request_open(&r->dkv_sent[i], g->cp, err);
    }
    return st;
}

/* ---- blocks ---- */

static int64_t rows_of(const struct attention *a)
{
    return a->batch * a->seq;
}

static int64_t elements_of(const struct ring_group *g, const struct attention *a)
{
    return rows_of(a) * 2 * g->kv_width;
}

/* Send buf to the next rank. */
static void send_on(const struct ring_group *g, const void *buf, int64_t elements, enum dtype type,
                    struct comm_request *sent)
{
    comm_send(g->cp, g->k->queue, buf, elements, type, (comm_rank(g->cp) + 1) % comm_size(g->cp),
              sent);
}

/* Receive from the previous rank into buf, which request `last` may still be sending. */
static void receive(const struct ring_group *g, void *buf, int64_t elements, enum dtype type,
                    struct comm_request *last)
{
    int size = comm_size(g->cp);

    comm_wait(g->cp, g->k->queue, last);
    comm_recv(g->cp, g->k->queue, buf, elements, type, (comm_rank(g->cp) + size - 1) % size);
}

/* Send this rank's own block to the next rank. */
static void send_own(const struct ring_group *g, struct ring_buffers *r, const struct attention *a)
{
    int64_t e = dtype_bytes(a->type), half = g->kv_width * e;
    struct device_copy k = { r->kv[0], a->k, rows_of(a), half, 2 * half, a->ldk * e };
    struct device_copy v = {
        (char *)r->kv[0] + half, a->v, rows_of(a), half, 2 * half, a->ldv * e
    };

    comm_wait(g->cp, g->k->queue, r->kv_sent[0]);
    device_copy_2d(g->k->queue, &k);
    device_copy_2d(g->k->queue, &v);
    send_on(g, r->kv[0], elements_of(g, a), a->type, r->kv_sent[0]);
}

/* Receive the block of step `step` into kv[step % 2], and send it on unless the next rank is its
 * origin. */
static void pass_block(const struct ring_group *g, struct ring_buffers *r,
                       const struct attention *a, int step)
{
    struct comm_request *sent = r->kv_sent[step % 2];
    void *block = r->kv[step % 2];

    receive(g, block, elements_of(g, a), a->type, sent);
    if (step < comm_size(g->cp) - 1)
        send_on(g, block, elements_of(g, a), a->type, sent);
}

/* Receive the gradients of that block into dkv[step % 2]. They start as zeros at the first rank
 * that gets the block. */
static void take_gradients(const struct ring_group *g, struct ring_buffers *r,
                           const struct attention *a, int step)
{
    int64_t elements = elements_of(g, a);
    float *dkv = r->dkv[step % 2];

    if (step > 1) {
        receive(g, dkv, elements, DTYPE_F32, r->dkv_sent[step % 2]);
        return;
    }
    comm_wait(g->cp, g->k->queue, r->dkv_sent[step % 2]);
    device_fill(g->k->queue, dkv, 0, elements * (int64_t)sizeof *dkv);
}

/* ---- steps ---- */

/* The rows of `a` that attend to keys of the block of step `step`, and those keys. */
struct ring_share {
    struct attention a;
    int64_t row0; /* of each sequence */
};

static struct ring_share share_of(const struct ring_group *g, const struct ring_buffers *r,
                                  const struct attention *a, int step)
{
    struct ring_share s = { .a = *a };
    const char *kv = r->kv[step % 2];
    int64_t e = dtype_bytes(a->type), half = a->seq / 2;

    s.a.k = kv;
    s.a.v = kv + g->kv_width * e;
    s.a.ldk = s.a.ldv = 2 * g->kv_width;
    s.a.q_step = s.a.k_step = a->seq;
    s.a.merge = true;
    s.a.keys = half;
    if (step <= comm_rank(g->cp)) /* from a rank before this one */
        return s;
    s.row0 = half;
    s.a.keys = a->seq;
    s.a.seq -= half;
    s.a.q = (const char *)a->q + half * a->ldq * e;
    s.a.out = (char *)a->out + half * a->ldo * e;
    s.a.sum = a->sum ? a->sum + half * a->ldo : NULL;
    s.a.lse = a->lse + half;
    return s;
}

void ring_attention_forward(const struct ring_group *g, struct ring_buffers *r,
                            const struct attention *a, float *sum)
{
    struct attention own = *a;

    if (comm_size(g->cp) == 1) {
        g->k->ops->attention_forward(g->k->queue, a);
        return;
    }
    if (a->type != DTYPE_F32)
        own.sum = sum;
    send_own(g, r, a);
    g->k->ops->attention_forward(g->k->queue, &own);
    for (int step = 1; step < comm_size(g->cp); step++) {
        struct ring_share s;

        pass_block(g, r, a, step);
        s = share_of(g, r, &own, step);
        g->k->ops->attention_forward(g->k->queue, &s.a);
    }
    if (own.sum)
        g->k->ops->cast(g->k->queue,
                        &(struct cast){ a->out, a->type, own.sum, DTYPE_F32, rows_of(a) * a->ldo });
}

/* Add dkv, which has returned to this rank, to the gradients of its own keys and values. */
static void add_own(const struct ring_group *g, float *dk, const float *dkv, int64_t rows)
{
    int64_t width = 2 * g->kv_width;

    g->k->ops->sum_add(g->k->queue, &(struct sum_add){ dk, dkv, rows, width, g->qkv_width, width });
}

void ring_attention_backward(const struct ring_group *g, struct ring_buffers *r,
                             const struct attention *a, const void *d_out, float *dqkv)
{
    int64_t ld = g->qkv_width, kv = g->kv_width;
    int ranks = comm_size(g->cp), home = ranks % 2;
    struct attention_backward own = { .of = *a, .d_out = d_out, .dq = dqkv };

    own.dk = dqkv + g->q_width;
    own.dv = own.dk + kv;
    own.lddq = own.lddk = own.lddv = ld;
    if (ranks > 1)
        send_own(g, r, a);
    g->k->ops->attention_backward(g->k->queue, &own);
    for (int step = 1; step < ranks; step++) {
        struct attention_backward part = own;
        struct ring_share s;

        pass_block(g, r, a, step);
        take_gradients(g, r, a, step);
        s = share_of(g, r, a, step);
        part.of = s.a;
        part.d_out = (const char *)d_out + s.row0 * a->ldo * dtype_bytes(a->type);
        part.dq = dqkv + s.row0 * ld;
        part.dk = r->dkv[step % 2];
        part.dv = part.dk + kv;
        part.lddk = part.lddv = 2 * kv;
        g->k->ops->attention_backward(g->k->queue, &part);
        send_on(g, part.dk, elements_of(g, a), DTYPE_F32, r->dkv_sent[step % 2]);
    }
    if (ranks > 1) {
        receive(g, r->dkv[home], elements_of(g, a), DTYPE_F32, r->dkv_sent[home]);
        add_own(g, own.dk, r->dkv[home], rows_of(a));
    }
}

void ring_attention_wait(const struct ring_group *g, const struct ring_buffers *r)
{
    for (int i = 0; i < 2 && comm_size(g->cp) > 1; i++) {
        comm_wait(g->cp, g->k->queue, r->kv_sent[i]);
        comm_wait(g->cp, g->k->queue, r->dkv_sent[i]);
    }
}
