/* trainer/context/ring_attention.c - see trainer/context/ring_attention.h. */
#include "trainer/context/ring_attention.h"

void ring_take(struct ring *r, const struct net *n, int64_t sequences, struct buffer_pool *shared)
{
    int64_t elements = sequences * n->seq * 2 * n->kv_width;

    for (int i = 0; i < 2 && n->tokens.n > 1; i++) {
        r->kv[i] = buffer_pool_take(shared, elements, dtype_bytes(n->dtype));
        r->dkv[i] = buffer_pool_take(shared, elements, sizeof(float));
    }
}

/* ---- blocks ---- */

static int64_t rows_of(const struct attention *a)
{
    return a->batch * a->seq;
}

static int64_t elements_of(const struct net *n, const struct attention *a)
{
    return rows_of(a) * 2 * n->kv_width;
}

static tp_status post(const struct net *n, const void *buf, int64_t bytes,
                      struct comm_request *ticket, struct tp_err *err)
{
    return comm_post(n->cp, buf, bytes, (comm_rank(n->cp) + 1) % comm_size(n->cp), ticket, err);
}

static tp_status receive(const struct net *n, void *buf, int64_t bytes, struct comm_request *last,
                         struct tp_err *err)
{
    int size = comm_size(n->cp);
    tp_status st = comm_wait(n->cp, last, err);

    return st ? st : comm_recv(n->cp, buf, bytes, (comm_rank(n->cp) + size - 1) % size, err);
}

/* This rank's own block, to the next rank. */
static tp_status send_own(const struct net *n, struct ring *r, const struct attention *a,
                          struct tp_err *err)
{
    int64_t e = dtype_bytes(a->type), half = n->kv_width * e;
    tp_status st = comm_wait(n->cp, &r->kv_sent[0], err);
    struct device_copy k = { r->kv[0], a->k, rows_of(a), half, 2 * half, a->ldk * e };
    struct device_copy v = {
        (char *)r->kv[0] + half, a->v, rows_of(a), half, 2 * half, a->ldv * e
    };

    if (st)
        return st;
    device_copy_2d(n->k.queue, &k);
    device_copy_2d(n->k.queue, &v);
    return post(n, r->kv[0], elements_of(n, a) * e, &r->kv_sent[0], err);
}

/* The block of step `step`, into kv[step % 2], and at once on to the next rank if that wants it. */
static tp_status pass_block(const struct net *n, struct ring *r, const struct attention *a,
                            int step, struct tp_err *err)
{
    int64_t bytes = elements_of(n, a) * dtype_bytes(a->type);
    struct comm_request *sent = &r->kv_sent[step % 2];
    void *block = r->kv[step % 2];
    tp_status st = receive(n, block, bytes, sent, err);

    if (st || step == comm_size(n->cp) - 1)
        return st;
    return post(n, block, bytes, sent, err);
}

/* The gradients that follow that block, into dkv[step % 2]; they begin at the first rank that is
 * not the block's own. */
static tp_status take_gradients(const struct net *n, struct ring *r, const struct attention *a,
                                int step, struct tp_err *err)
{
    int64_t bytes = elements_of(n, a) * (int64_t)sizeof(float);
    float *dkv = r->dkv[step % 2];
    tp_status st;

    if (step > 1)
        return receive(n, dkv, bytes, &r->dkv_sent[step % 2], err);
    if (!(st = comm_wait(n->cp, &r->dkv_sent[step % 2], err)))
        device_fill(n->k.queue, dkv, 0, bytes);
    return st;
}

/* ---- steps ---- */

/* The rows of a that see keys of the block of step `step`, and those keys. */
struct share {
    struct attention a;
    int64_t row0; /* of each sequence */
};

static struct share share_of(const struct net *n, const struct ring *r, const struct attention *a,
                             int step)
{
    struct share s = { .a = *a };
    const char *kv = r->kv[step % 2];
    int64_t e = dtype_bytes(a->type), half = a->seq / 2;

    s.a.k = kv;
    s.a.v = kv + n->kv_width * e;
    s.a.ldk = s.a.ldv = 2 * n->kv_width;
    s.a.q_step = s.a.k_step = a->seq;
    s.a.merge = true;
    s.a.keys = half;
    if (step <= comm_rank(n->cp)) /* from a rank before this one */
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

tp_status attention_cp_forward(const struct net *n, struct ring *r, const struct attention *a,
                               float *sum, struct tp_err *err)
{
    struct attention own = *a;
    tp_status st;

    if (n->tokens.n == 1) {
        n->k.ops->attention_forward(n->k.queue, a);
        return TP_OK;
    }
    if (a->type != DTYPE_F32)
        own.sum = sum;
    TP_TRY(send_own(n, r, a, err));
    n->k.ops->attention_forward(n->k.queue, &own);
    for (int step = 1; step < n->tokens.n; step++) {
        struct share s;

        TP_TRY(pass_block(n, r, a, step, err));
        s = share_of(n, r, &own, step);
        n->k.ops->attention_forward(n->k.queue, &s.a);
    }
    if (own.sum)
        n->k.ops->cast(n->k.queue,
                       &(struct cast){ a->out, a->type, own.sum, DTYPE_F32, rows_of(a) * a->ldo });
done:
    return st;
}

/* dkv, which has come home, to the gradients of this rank's own keys and values. */
static void add_own(const struct net *n, float *dk, const float *dkv, int64_t rows)
{
    int64_t width = 2 * n->kv_width;

    n->k.ops->sum_add(n->k.queue, &(struct sum_add){ dk, dkv, rows, width, n->qkv_width, width });
}

tp_status attention_cp_backward(const struct net *n, struct ring *r, const struct attention *a,
                                const void *d_out, float *dqkv, struct tp_err *err)
{
    int64_t ld = n->qkv_width, kv = n->kv_width, bytes = elements_of(n, a) * (int64_t)sizeof(float);
    int ranks = n->tokens.n, home = ranks % 2;
    struct attention_backward own = { .of = *a, .d_out = d_out, .dq = dqkv };
    tp_status st = TP_OK;

    own.dk = dqkv + n->q_width;
    own.dv = own.dk + kv;
    own.lddq = own.lddk = own.lddv = ld;
    if (ranks > 1)
        TP_TRY(send_own(n, r, a, err));
    n->k.ops->attention_backward(n->k.queue, &own);
    for (int step = 1; step < ranks; step++) {
        struct attention_backward part = own;
        struct share s;

        TP_TRY(pass_block(n, r, a, step, err));
        TP_TRY(take_gradients(n, r, a, step, err));
        s = share_of(n, r, a, step);
        part.of = s.a;
        part.d_out = (const char *)d_out + s.row0 * a->ldo * dtype_bytes(a->type);
        part.dq = dqkv + s.row0 * ld;
        part.dk = r->dkv[step % 2];
        part.dv = part.dk + kv;
        part.lddk = part.lddv = 2 * kv;
        n->k.ops->attention_backward(n->k.queue, &part);
        TP_TRY(post(n, part.dk, bytes, &r->dkv_sent[step % 2], err));
    }
    if (ranks > 1) {
        TP_TRY(receive(n, r->dkv[home], bytes, &r->dkv_sent[home], err));
        add_own(n, own.dk, r->dkv[home], rows_of(a));
    }
done:
    return st;
}

tp_status ring_wait(const struct net *n, struct ring *r, struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int i = 0; i < 2 && n->tokens.n > 1 && !st; i++) {
        st = comm_wait(n->cp, &r->kv_sent[i], err);
        if (!st)
            st = comm_wait(n->cp, &r->dkv_sent[i], err);
    }
    return st;
}
