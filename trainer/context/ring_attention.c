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

tp_status ring_open(struct ring *r, const struct net *n, struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int i = 0; i < 2 && n->tokens.n > 1 && !st; i++) {
        st = comm_request_open(&r->kv_sent[i], n->cp, err);
        if (!st)
            st = comm_request_open(&r->dkv_sent[i], n->cp, err);
    }
    return st;
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

/* To the next rank. */
static void send_on(const struct net *n, const void *buf, int64_t elements, enum dtype type,
                    struct comm_request *sent)
{
    comm_send(n->cp, n->k.queue, buf, elements, type, (comm_rank(n->cp) + 1) % comm_size(n->cp),
              sent);
}

/* From the rank before, where what `last` sent was. */
static void receive(const struct net *n, void *buf, int64_t elements, enum dtype type,
                    struct comm_request *last)
{
    int size = comm_size(n->cp);

    comm_wait(n->cp, n->k.queue, last);
    comm_recv(n->cp, n->k.queue, buf, elements, type, (comm_rank(n->cp) + size - 1) % size);
}

/* This rank's own block, to the next rank. */
static void send_own(const struct net *n, struct ring *r, const struct attention *a)
{
    int64_t e = dtype_bytes(a->type), half = n->kv_width * e;
    struct device_copy k = { r->kv[0], a->k, rows_of(a), half, 2 * half, a->ldk * e };
    struct device_copy v = {
        (char *)r->kv[0] + half, a->v, rows_of(a), half, 2 * half, a->ldv * e
    };

    comm_wait(n->cp, n->k.queue, r->kv_sent[0]);
    device_copy_2d(n->k.queue, &k);
    device_copy_2d(n->k.queue, &v);
    send_on(n, r->kv[0], elements_of(n, a), a->type, r->kv_sent[0]);
}

/* The block of step `step`, into kv[step % 2], and at once on to the next rank if that wants it. */
static void pass_block(const struct net *n, struct ring *r, const struct attention *a, int step)
{
    struct comm_request *sent = r->kv_sent[step % 2];
    void *block = r->kv[step % 2];

    receive(n, block, elements_of(n, a), a->type, sent);
    if (step < comm_size(n->cp) - 1)
        send_on(n, block, elements_of(n, a), a->type, sent);
}

/* The gradients that follow that block, into dkv[step % 2]; they begin at the first rank that is
 * not the block's own. */
static void take_gradients(const struct net *n, struct ring *r, const struct attention *a, int step)
{
    int64_t elements = elements_of(n, a);
    float *dkv = r->dkv[step % 2];

    if (step > 1) {
        receive(n, dkv, elements, DTYPE_F32, r->dkv_sent[step % 2]);
        return;
    }
    comm_wait(n->cp, n->k.queue, r->dkv_sent[step % 2]);
    device_fill(n->k.queue, dkv, 0, elements * (int64_t)sizeof *dkv);
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

void attention_cp_forward(const struct net *n, struct ring *r, const struct attention *a,
                          float *sum)
{
    struct attention own = *a;

    if (n->tokens.n == 1) {
        n->k.ops->attention_forward(n->k.queue, a);
        return;
    }
    if (a->type != DTYPE_F32)
        own.sum = sum;
    send_own(n, r, a);
    n->k.ops->attention_forward(n->k.queue, &own);
    for (int step = 1; step < n->tokens.n; step++) {
        struct share s;

        pass_block(n, r, a, step);
        s = share_of(n, r, &own, step);
        n->k.ops->attention_forward(n->k.queue, &s.a);
    }
    if (own.sum)
        n->k.ops->cast(n->k.queue,
                       &(struct cast){ a->out, a->type, own.sum, DTYPE_F32, rows_of(a) * a->ldo });
}

/* dkv, which has come home, to the gradients of this rank's own keys and values. */
static void add_own(const struct net *n, float *dk, const float *dkv, int64_t rows)
{
    int64_t width = 2 * n->kv_width;

    n->k.ops->sum_add(n->k.queue, &(struct sum_add){ dk, dkv, rows, width, n->qkv_width, width });
}

void attention_cp_backward(const struct net *n, struct ring *r, const struct attention *a,
                           const void *d_out, float *dqkv)
{
    int64_t ld = n->qkv_width, kv = n->kv_width;
    int ranks = n->tokens.n, home = ranks % 2;
    struct attention_backward own = { .of = *a, .d_out = d_out, .dq = dqkv };

    own.dk = dqkv + n->q_width;
    own.dv = own.dk + kv;
    own.lddq = own.lddk = own.lddv = ld;
    if (ranks > 1)
        send_own(n, r, a);
    n->k.ops->attention_backward(n->k.queue, &own);
    for (int step = 1; step < ranks; step++) {
        struct attention_backward part = own;
        struct share s;

        pass_block(n, r, a, step);
        take_gradients(n, r, a, step);
        s = share_of(n, r, a, step);
        part.of = s.a;
        part.d_out = (const char *)d_out + s.row0 * a->ldo * dtype_bytes(a->type);
        part.dq = dqkv + s.row0 * ld;
        part.dk = r->dkv[step % 2];
        part.dv = part.dk + kv;
        part.lddk = part.lddv = 2 * kv;
        n->k.ops->attention_backward(n->k.queue, &part);
        send_on(n, part.dk, elements_of(n, a), DTYPE_F32, r->dkv_sent[step % 2]);
    }
    if (ranks > 1) {
        receive(n, r->dkv[home], elements_of(n, a), DTYPE_F32, r->dkv_sent[home]);
        add_own(n, own.dk, r->dkv[home], rows_of(a));
    }
}

void ring_wait(const struct net *n, const struct ring *r)
{
    for (int i = 0; i < 2 && n->tokens.n > 1; i++) {
        comm_wait(n->cp, n->k.queue, r->kv_sent[i]);
        comm_wait(n->cp, n->k.queue, r->dkv_sent[i]);
    }
}
