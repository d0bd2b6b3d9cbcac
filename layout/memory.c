/* layout/memory.c - see layout/memory.h. The buffers are those of trainer/params.h and
 * trainer/activation.h; a test compares the two to the byte but for alignment. */
#include "layout/memory.h"

enum {
    /* measured: program and libraries, code that oneDNN generates and what it packs operands into,
     * small buffers of collectives; 18 MiB with one thread, 30 with two */
    PROGRAM_BYTES = 36 << 20,
    /* measured: HDF5 and OpenSSL at work, and a manifest */
    SAVING_BYTES = 10 << 20,
    /* around a page of another rank that a rank touches the kernel maps neighbours too */
    FAULT_AROUND_BYTES = 64 << 10,
};

/* A rank's share of everything; the first rank's, parts being cut from the front. */
struct share {
    int64_t q, kv, ffn, vocab, heads; /* rows of each */
    int64_t elements;                 /* of parameters */
};

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static struct share share_of(const struct model *m, const struct spec *s)
{
    int64_t h = m->hidden, layer;
    struct share r = { 0 };

    r.heads = ceil_div(m->heads, s->tp);
    r.q = r.heads * m->head_dim;
    r.kv = ceil_div(m->kv_heads, s->tp) * m->head_dim;
    r.ffn = ceil_div(m->ffn, s->tp);
    r.vocab = ceil_div(m->vocab, s->tp);
    layer = 2 * h + h * (2 * r.q + 2 * r.kv) + 3 * h * r.ffn;
    r.elements = m->layers * layer + r.vocab * h * (m->tied ? 1 : 2) + h;
    return r;
}

/* Kept from the forward to the backward pass of a microbatch: struct slot. */
static int64_t slot_bytes(const struct model *m, const struct share *r, int64_t e, int64_t rows)
{
    int64_t stream = 4 * m->hidden, normed = e * m->hidden, qkv = e * (r->q + 2 * r->kv);
    int64_t layer =
        2 * (stream + normed + 4) + qkv + e * r->q + 4 * r->heads + (4 * 2 + e) * r->ffn;

    return rows * (m->layers * layer + stream + normed + 4 + 8);
}

/* Used by layer after layer: struct scratch. */
static int64_t scratch_bytes(const struct model *m, const struct share *r, int64_t e, int64_t rows)
{
    int64_t qkv = r->q + 2 * r->kv, wide = most(most(r->ffn, r->q), r->vocab);
    int64_t row = 4 * (2 * m->hidden + wide + qkv + 3);

    if (e < 4)
        row += 2 * (most(most(2 * r->ffn, qkv), r->vocab) + m->hidden);
    return rows * row;
}

/* Resident pages of the other ranks' buffers: of each buffer that n ranks reduce together a rank
 * sums its part in all of them. */
static int64_t foreign_bytes(int64_t n, int64_t bytes, int64_t buffers)
{
    return least((n - 1) * bytes,
                 (n - 1) * bytes / n + (n - 1) * buffers * (int64_t)FAULT_AROUND_BYTES);
}

struct memory_need memory_estimate(const struct model *m, const struct spec *s, enum dtype dtype,
                                   int64_t micro, int64_t seq, bool saves)
{
    struct share r = share_of(m, s);
    int64_t rows = micro * seq, e = dtype_bytes(dtype);
    struct memory_need need = { 0 };

    need.params = r.elements * e;
    need.grads = r.elements * 4;
    need.moments = r.elements * 8;
    if (dtype != DTYPE_F32)
        need.master = r.elements * 4;
    need.activations = slot_bytes(m, &r, e, rows);
    need.workspace = scratch_bytes(m, &r, e, rows) + 4 * seq * m->head_dim;
    if (saves) /* replicas share the writing */
        need.staging = (need.params + need.master + need.moments) / s->dp + SAVING_BYTES;
    need.overhead =
        PROGRAM_BYTES +
        foreign_bytes(s->tp, (2 * m->layers + 2) * rows * 4 * m->hidden, 2 * m->layers + 2) +
        foreign_bytes(s->dp, need.grads, 1);
    need.total = need.params + need.grads + need.moments + need.master + need.activations +
                 need.workspace + need.staging + need.overhead;
    return need;
}
