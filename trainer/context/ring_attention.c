/* trainer/context/ring_attention.c - see trainer/context/ring_attention.h. */
#include "trainer/context/ring_attention.h"

#include <stddef.h>

tp_status ring_attention_open(struct ring_group *g, struct device *d, struct tp_err *err)
{
    tp_status st;

    if (comm_size(g->cp) == 1)
        return TP_OK;
    TP_TRY(device_queue_open(d, &g->queue, DEVICE_QUEUE_EXCHANGE, err));
    TP_TRY(device_event_open(d, &g->ready, err));
    TP_TRY(device_event_open(d, &g->kv_is_here, err));
    TP_TRY(device_event_open(d, &g->dkv_is_here, err));
    TP_TRY(comm_exchange_open(g->cp, err));
done:
    return st;
}

void ring_attention_close(struct ring_group *g)
{
    device_queue_close(g->queue);
    device_event_close(g->ready);
    device_event_close(g->kv_is_here);
    device_event_close(g->dkv_is_here);
    g->queue = NULL;
    g->ready = g->kv_is_here = g->dkv_is_here = NULL;
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

/* The next exchange may send what this rank has computed until now, and overwrite what it has used.
 */
static void exchange_after_compute(const struct ring_group *g)
{
    device_record(g->k->queue, g->ready);
    device_wait(g->queue, g->ready);
}

/* Copy this rank's own block to kv[0]. */
static void copy_own(const struct ring_group *g, const struct ring_buffers *r,
                     const struct attention *a)
{
    int64_t e = dtype_bytes(a->type), half = g->kv_width * e;
    struct device_copy k = { r->kv[0], a->k, rows_of(a), half, 2 * half, a->ldk * e };
    struct device_copy v = {
        (char *)r->kv[0] + half, a->v, rows_of(a), half, 2 * half, a->ldv * e
    };

    device_copy_2d(g->k->queue, &k);
    device_copy_2d(g->k->queue, &v);
}

/* Send on the block of step `step`, and receive that of the next step, unless this is the last. */
static void pass_block(const struct ring_group *g, const struct ring_buffers *r,
                       const struct attention *a, int step)
{
    if (step == comm_size(g->cp) - 1)
        return;
    exchange_after_compute(g);
    comm_exchange(g->cp, g->queue, r->kv[(step + 1) % 2], r->kv[step % 2], elements_of(g, a),
                  a->type);
    device_record(g->queue, g->kv_is_here);
}

/* Send on the gradients of the block of the step before, and receive those of the block of step
 * `step`, which other ranks have begun. In step 1 there are none yet. */
static void pass_gradients(const struct ring_group *g, const struct ring_buffers *r,
                           const struct attention *a, int step)
{
    if (step == 1)
        return;
    exchange_after_compute(g);
    comm_exchange(g->cp, g->queue, r->dkv[step % 2], r->dkv[(step - 1) % 2], elements_of(g, a),
                  DTYPE_F32);
    device_record(g->queue, g->dkv_is_here);
}

/* Where this rank computes its part of the gradients of a block, which is zero now. The first rank
 * that has a block begins its gradients. */
static float *clear_gradients(const struct ring_group *g, const struct ring_buffers *r,
                              const struct attention *a, int step)
{
    float *part = step == 1 ? r->dkv[1] : r->dkv_part;

    device_fill(g->k->queue, part, 0, elements_of(g, a) * (int64_t)sizeof *part);
    return part;
}

/* Add this rank's part to what has arrived. */
static void add_part(const struct ring_group *g, const struct ring_buffers *r,
                     const struct attention *a, int step)
{
    int64_t width = 2 * g->kv_width;

    if (step == 1)
        return;
    device_wait(g->k->queue, g->dkv_is_here);
    g->k->ops->sum_add(g->k->queue, &(struct sum_add){ r->dkv[step % 2], r->dkv_part, rows_of(a),
                                                       width, width, width });
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

void ring_attention_forward(const struct ring_group *g, const struct ring_buffers *r,
                            const struct attention *a, float *sum)
{
    struct attention own = *a;

    if (comm_size(g->cp) == 1) {
        g->k->ops->attention_forward(g->k->queue, a);
        return;
    }
    if (a->type != DTYPE_F32)
        own.sum = sum;
    copy_own(g, r, a);
    for (int step = 0; step < comm_size(g->cp); step++) {
        struct ring_part parts[PARTS_MAX];
        int n = parts_of(parts, g, r, &own, step);

        if (step > 0)
            device_wait(g->k->queue, g->kv_is_here);
        pass_block(g, r, a, step);
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
static void add_blocks(const struct ring_group *g, const struct ring_buffers *r,
                       const struct attention *a, const void *d_out, float *dqkv)
{
    int ranks = comm_size(g->cp);
    struct attention_backward own = backward_to(g, a, d_out, dqkv, DTYPE_F32), block = own;

    block.lddk = block.lddv = 2 * g->kv_width;
    copy_own(g, r, a);
    pass_block(g, r, a, 0);
    backward_step(g, r, &own, 0);
    for (int step = 1; step < ranks; step++) {
        float *part;

        device_wait(g->k->queue, g->kv_is_here);
        pass_block(g, r, a, step);
        pass_gradients(g, r, a, step);
        part = clear_gradients(g, r, a, step);
        block.dk = part;
        block.dv = part + g->kv_width;
        backward_step(g, r, &block, step);
        add_part(g, r, a, step);
    }
    pass_gradients(g, r, a, ranks); /* those of this rank's own block return */
    device_wait(g->k->queue, g->dkv_is_here);
    add_own(g, own.dk, r->dkv[ranks % 2], rows_of(a));
}

void ring_attention_backward(const struct ring_group *g, const struct ring_buffers *r,
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
