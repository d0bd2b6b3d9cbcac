/* trainer/context/ring_attention.c - see trainer/context/ring_attention.h. */
#include "trainer/context/ring_attention.h"

#include <stddef.h>

tp_status ring_attention_open(struct ring_buffers *r, const struct ring_group *g,
                              struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int i = 0; i < 2 && comm_size(g->cp) > 1 && !st; i++) {
        st = comm_request_open(&r->kv_sent[i], g->cp, COMM_NEXT, err);
        if (!st)
            st = comm_request_open(&r->dkv_sent[i], g->cp, COMM_NEXT, err);
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

/* Some rows of this rank and the keys of a block that they attend to. */
struct ring_part {
    struct attention a;
    int64_t row0, key0; /* of each sequence */
};

enum { PARTS_MAX = 4 };

/* Rows from row0 and keys from key0 of `a`, whose sequences are as long as before. */
static struct ring_part part_of(const struct attention *a, int64_t row0, int64_t key0)
{
    struct ring_part p = { .a = *a, .row0 = row0, .key0 = key0 };
    int64_t e = dtype_bytes(a->type);

    p.a.q_step = p.a.k_step = a->seq;
    p.a.seq -= row0;
    p.a.q = (const char *)a->q + row0 * a->ldq * e;
    p.a.out = (char *)a->out + row0 * a->ldo * e;
    p.a.sum = a->sum ? a->sum + row0 * a->ldo : NULL;
    p.a.lse = a->lse + row0;
    p.a.k = (const char *)a->k + key0 * a->ldk * e;
    p.a.v = (const char *)a->v + key0 * a->ldv * e;
    return p;
}

/* With a window: a half of the rows and a half of the keys, both of consecutive tokens, of which
 * the rows' first is `apart` tokens after the keys' first. False: the mask hides all of it. */
static bool windowed_part(struct ring_part *p, const struct attention *a, int64_t row0,
                          int64_t key0, int64_t apart)
{
    int64_t half = a->seq / 2, seen;
    int64_t hidden = apart < a->window ? 0 : apart - a->window + 1; /* from all rows */

    if (apart < 0 || hidden >= half)
        return false;
    *p = part_of(a, row0, key0 + hidden);
    p->a.seq = half;
    if (apart == 0)
        return true;
    p->a.merge = true;
    p->a.keys = half - hidden;
    p->a.window = hidden ? 1 : a->window - apart;
    seen = p->a.keys + p->a.window - 1; /* later rows see none of these keys */
    p->a.seq = seen < half ? seen : half;
    return true;
}

/* The parts of the block that came from rank `from`, whose keys and values `a` has. Of its own
 * block come first those that do not merge. */
static int windowed_parts(struct ring_part parts[PARTS_MAX], const struct ring_group *g,
                          const struct attention *a, int from)
{
    static const int halves[PARTS_MAX][2] = { { 0, 0 }, { 1, 1 }, { 1, 0 }, { 0, 1 } };
    const int last = 2 * comm_size(g->cp) - 1, me = comm_rank(g->cp);
    int64_t half = a->seq / 2;
    int n = 0;

    for (int i = 0; i < PARTS_MAX; i++) {
        int rows = halves[i][0], keys = halves[i][1];
        int apart = (rows ? last - me : me) - (keys ? last - from : from);

        n += windowed_part(&parts[n], a, rows * half, keys * half, apart * half);
    }
    return n;
}

/* What this rank computes with the block of step `step`; returns the number of parts. */
static int parts_of(struct ring_part parts[PARTS_MAX], const struct ring_group *g,
                    const struct ring_buffers *r, const struct attention *a, int step)
{
    const int size = comm_size(g->cp), from = (comm_rank(g->cp) + size - step) % size;
    const char *kv = r->kv[step % 2];
    struct attention block = *a;

    if (step > 0) {
        block.k = kv;
        block.v = kv + g->kv_width * dtype_bytes(a->type);
        block.ldk = block.ldv = 2 * g->kv_width;
    }
    if (a->window && size > 1)
        return windowed_parts(parts, g, &block, from);
    parts[0] = part_of(&block, step > comm_rank(g->cp) ? a->seq / 2 : 0, 0);
    if (step > 0) {
        parts[0].a.merge = true;
        parts[0].a.keys = from < comm_rank(g->cp) ? a->seq / 2 : a->seq;
    }
    return 1;
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
    for (int step = 0; step < comm_size(g->cp); step++) {
        struct ring_part parts[PARTS_MAX];
        int n;

        if (step > 0)
            pass_block(g, r, a, step);
        n = parts_of(parts, g, r, &own, step);
        for (int i = 0; i < n; i++)
            g->k->ops->attention_forward(g->k->queue, &parts[i].a);
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

/* Compute the parts of a step; `all` has the gradients of all rows and of the block's keys, in
 * f32. */
static void backward_step(const struct ring_group *g, const struct ring_buffers *r,
                          const struct attention_backward *all, int step)
{
    const struct attention *a = &all->of;
    struct ring_part parts[PARTS_MAX];
    int n = parts_of(parts, g, r, a, step);

    for (int i = 0; i < n; i++) {
        struct attention_backward part = *all;

        part.of = parts[i].a;
        part.d_out = (const char *)all->d_out + parts[i].row0 * a->ldo * dtype_bytes(a->type);
        part.dq = (float *)all->dq + parts[i].row0 * all->lddq;
        part.dk = (float *)all->dk + parts[i].key0 * all->lddk;
        part.dv = (float *)all->dv + parts[i].key0 * all->lddv;
        g->k->ops->attention_backward(g->k->queue, &part);
    }
}

/* The backward pass whose gradients are side by side in dqkv. */
static struct attention_backward backward_to(const struct ring_group *g, const struct attention *a,
                                             const void *d_out, void *dqkv, enum dtype type)
{
    int64_t e = dtype_bytes(type), ld = g->qkv_width;

    return (struct attention_backward){ .of = *a,
                                        .d_out = d_out,
                                        .dq = dqkv,
                                        .dk = (char *)dqkv + g->q_width * e,
                                        .dv = (char *)dqkv + (g->q_width + g->kv_width) * e,
                                        .lddq = ld,
                                        .lddk = ld,
                                        .lddv = ld,
                                        .type = type };
}

/* The sums over the blocks of all ranks, in f32. */
static void add_blocks(const struct ring_group *g, struct ring_buffers *r,
                       const struct attention *a, const void *d_out, float *dqkv)
{
    int64_t kv = g->kv_width;
    int ranks = comm_size(g->cp), home = ranks % 2;
    struct attention_backward own = backward_to(g, a, d_out, dqkv, DTYPE_F32), block;

    send_own(g, r, a);
    backward_step(g, r, &own, 0);
    block = own;
    block.lddk = block.lddv = 2 * kv;
    for (int step = 1; step < ranks; step++) {
        pass_block(g, r, a, step);
        take_gradients(g, r, a, step);
        block.dk = r->dkv[step % 2];
        block.dv = r->dkv[step % 2] + kv;
        backward_step(g, r, &block, step);
        send_on(g, block.dk, elements_of(g, a), DTYPE_F32, r->dkv_sent[step % 2]);
    }
    receive(g, r->dkv[home], elements_of(g, a), DTYPE_F32, r->dkv_sent[home]);
    add_own(g, own.dk, r->dkv[home], rows_of(a));
}

void ring_attention_backward(const struct ring_group *g, struct ring_buffers *r,
                             const struct attention *a, const void *d_out,
                             const struct ring_gradients *to)
{
    if (comm_size(g->cp) == 1) {
        const struct attention_backward own = backward_to(g, a, d_out, to->dqkv, to->type);

        g->k->ops->attention_backward(g->k->queue, &own);
        return;
    }
    add_blocks(g, r, a, d_out, to->sums);
    if (to->type != DTYPE_F32)
        g->k->ops->cast(g->k->queue, &(struct cast){ to->dqkv, to->type, to->sums, DTYPE_F32,
                                                     rows_of(a) * g->qkv_width });
}

void ring_attention_wait(const struct ring_group *g, const struct ring_buffers *r)
{
    for (int i = 0; i < 2 && comm_size(g->cp) > 1; i++) {
        comm_wait(g->cp, g->k->queue, r->kv_sent[i]);
        comm_wait(g->cp, g->k->queue, r->dkv_sent[i]);
    }
}
