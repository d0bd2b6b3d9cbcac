/* layout/memory.c - see layout/memory.h. The buffers are those of trainer/data_parallel/params.h
 * and trainer/model/activations.h; a test compares the two to the byte but for alignment. */
#include "layout/memory.h"

#include "layout/layout.h"
#include "layout/parallel_plan.h"
#include "layout/same_bits.h"

enum {
    ATTENTION_ROWS = 64, /* of scores at a time: kernels/cpu/attention.c's block */
    /* measured: program and libraries, code that oneDNN generates and what it packs operands into,
     * small buffers of collectives; 18 MiB with one thread, 30 with two */
    PROGRAM_BYTES = 36 << 20,
    /* measured: HDF5 and OpenSSL at work, and a manifest */
    SAVING_BYTES = 10 << 20,
    /* around a page of another rank that a rank touches the kernel maps neighbours too */
    FAULT_AROUND_BYTES = 64 << 10,
};

/* What one rank has; of its stage the first, parts being cut from the front. */
struct share {
    int64_t q, kv, ffn, up, heads; /* rows of each; up: gate and up together */
    int64_t table, head;           /* rows of the embedding; of the head */
    int64_t shards, n_virtual;     /* tensor shards that it plays, and of all; 1 and tp */
    int64_t own_kv;                /* kv but for copies */
    int64_t wide_vocab;            /* the wider of table and head, as if all parts were full */
    int64_t stats;                 /* floats that a norm leaves a row */
    int64_t layers;                /* of all its chunks */
    int64_t slots, slot_layers;    /* microbatches' chunks that it keeps; layers of one */
    int64_t split;                 /* ranks that share the rows of the stream */
    bool is_first, is_last, is_pipeline, ring; /* ring: sequences are cut over cp ranks */
    bool same_bits;
    int64_t elements, owned; /* of parameters; those that this rank updates */
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

/* Passes of a chunk that rank `pp` keeps at a time: those before its first backward pass, of
 * trainer/pipeline/schedule.h, and that one (Narayanan et al. 2021). */
static int64_t slots_of(const struct spec *s, int pp, int64_t micros)
{
    int64_t behind = s->pp - pp, all = micros * s->vpp, slots;

    if (s->vpp == 1)
        slots = behind;
    else if (micros == s->pp) /* one group of microbatches: nothing to interleave with */
        slots = all;
    else
        slots = 2 * (behind - 1) + (int64_t)(s->vpp - 1) * s->pp + 1;
    return micros ? least(slots, all) : slots;
}

/* The layers of rank `pp` of a pipeline, and what it keeps. */
static void count_layers(struct share *r, const struct model *m, const struct spec *s, int pp,
                         int64_t micros)
{
    int64_t stages = (int64_t)s->pp * s->vpp;

    for (int64_t stage = pp; stage < stages; stage += s->pp)
        r->layers += layout_stage_layers(m->layers, stages, stage);
    r->slot_layers = layout_stage_layers(m->layers, stages, pp);
    r->slots = slots_of(s, pp, micros);
    r->is_first = pp == 0;
    r->is_last = pp == s->pp - 1;
    r->is_pipeline = s->pp > 1;
}

/* Elements of a tensor's part that the first of `owners` ranks has when ZeRO deals its rows. */
static int64_t owned(int64_t rows, int64_t cols, int64_t owners)
{
    return ceil_div(rows, owners) * cols;
}

static int64_t layer_elements(const struct share *r, const struct model *m, int64_t owners)
{
    int64_t h = m->hidden, n = 2 * owned(h, 1, owners);

    if (m->family == MODEL_GPT2)
        return n + 4 * owned(h, 1, owners) + owned(h, r->q + 2 * r->kv, owners) +
               owned(r->q + 2 * r->kv, 1, owners) + owned(r->q, h, owners) +
               owned(h, r->ffn, owners) + owned(r->ffn, 1, owners) + owned(r->ffn, h, owners);
    return n + owned(r->q, h, owners) + 2 * owned(r->kv, h, owners) + owned(h, r->q, owners) +
           2 * owned(r->ffn, h, owners) + owned(h, r->ffn, owners);
}

/* Before the layers, and after them; a tied head of the same stage counts before. */
static int64_t first_elements(const struct share *r, const struct model *m, int64_t owners)
{
    int64_t h = m->hidden, positions = m->family == MODEL_GPT2 ? m->max_positions : 0;

    return r->is_first ? owned(r->table, h, owners) + owned(positions, h, owners) : 0;
}

static int64_t last_elements(const struct share *r, const struct model *m, int64_t owners)
{
    int64_t h = m->hidden, norms = (m->family == MODEL_GPT2 ? 2 : 1) * owned(h, 1, owners);

    if (!r->is_last)
        return 0;
    return norms + (m->tied && r->is_first ? 0 : owned(r->head, h, owners));
}

static int64_t count_elements(const struct share *r, const struct model *m, int64_t owners)
{
    return r->layers * layer_elements(r, m, owners) + first_elements(r, m, owners) +
           last_elements(r, m, owners);
}

/* The elements among those that layers add and therefore read in fp32: norms, biases, positions. */
static int64_t layer_vectors(const struct share *r, const struct model *m, int64_t owners)
{
    int64_t norm = owned(m->hidden, 1, owners);

    if (m->family != MODEL_GPT2)
        return 2 * norm;
    return 6 * norm + owned(r->q + 2 * r->kv, 1, owners) + owned(r->ffn, 1, owners);
}

static int64_t first_vectors(const struct share *r, const struct model *m, int64_t owners)
{
    return r->is_first && m->family == MODEL_GPT2 ? owned(m->max_positions, m->hidden, owners) : 0;
}

static int64_t last_vectors(const struct share *r, const struct model *m, int64_t owners)
{
    return r->is_last ? (m->family == MODEL_GPT2 ? 2 : 1) * owned(m->hidden, 1, owners) : 0;
}

static int64_t count_vectors(const struct share *r, const struct model *m)
{
    return r->layers * layer_vectors(r, m, 1) + first_vectors(r, m, 1) + last_vectors(r, m, 1);
}

/* Of what zero3 gathers at a time: a layer, or what is before or after, which a tied head joins. */
static int64_t largest_unit(const struct share *r, const struct model *m, int64_t layer,
                            int64_t first, int64_t last)
{
    bool joined = m->tied && r->is_first && r->is_last;

    return most(layer, joined ? first + last : most(first, last));
}

/* The windows and packs of zero3, for weights of e bytes and gradients. */
static int64_t window_bytes(const struct share *r, const struct model *m, int64_t e, int64_t dp)
{
    int64_t layer = layer_elements(r, m, dp), layer_v = layer_vectors(r, m, dp);
    int64_t first = first_elements(r, m, dp), first_v = first_vectors(r, m, dp);
    int64_t last = last_elements(r, m, dp), last_v = last_vectors(r, m, dp);
    int64_t unit = largest_unit(r, m, layer_elements(r, m, 1), first_elements(r, m, 1),
                                last_elements(r, m, 1));
    int64_t vectors =
        largest_unit(r, m, layer_vectors(r, m, 1), first_vectors(r, m, 1), last_vectors(r, m, 1));
    int64_t grads = 4 * largest_unit(r, m, layer, first, last);
    int64_t weights = largest_unit(r, m, e * layer + (4 - e) * layer_v,
                                   e * first + (4 - e) * first_v, e * last + (4 - e) * last_v);

    return unit * (4 + e) + (e < 4 ? 4 * vectors : 0) + dp * (weights + grads);
}

static int64_t largest_tensor(const struct share *r, const struct model *m, int64_t owners)
{
    int64_t rows = most(most(most(r->table, r->head), r->ffn),
                        most(r->q + 2 * r->kv, r->is_first ? m->max_positions : 0));

    return owners * (owned(rows, m->hidden, owners) + m->hidden);
}

/* The first rank's of n units that a layer's weight is cut by, where the plan cuts it. What feeds a
 * row-parallel product is cut as it is (parallel_plan_check), so its role says it of both. */
static int64_t cut(const struct model *m, enum tensor_role role, int64_t n, int64_t ranks)
{
    const struct parallel_plan plan = parallel_plan_of(m);
    const struct parallel_plan_entry *e = parallel_plan_find(&plan, role);

    return e && (e->cut == CUT_ROW || e->cut == CUT_VOCABULARY) ? ceil_div(n, ranks) : n;
}

static void count_vocabulary(struct share *r, const struct model *m)
{
    int64_t table = r->shards * cut(m, ROLE_EMBEDDING, m->vocab, r->n_virtual);
    int64_t head = m->tied ? table : r->shards * cut(m, ROLE_HEAD, m->vocab, r->n_virtual);

    if (r->is_first)
        r->table = least(m->vocab, table);
    if (r->is_last)
        r->head = least(m->vocab, head);
    r->wide_vocab = most(r->is_first ? table : 0, r->is_last ? head : 0);
}

static struct share share_of(const struct model *m, const struct spec *s, const struct workload *w,
                             int pp)
{
    struct share r = { .same_bits = w->same_bits > 0,
                       .n_virtual = w->same_bits ? w->same_bits : s->tp };

    r.shards = r.n_virtual / s->tp;
    r.heads = cut(m, ROLE_OUT, m->heads, s->tp);
    r.q = r.heads * m->head_dim;
    r.own_kv = cut(m, ROLE_OUT, m->kv_heads, s->tp) * m->head_dim;
    r.kv = r.shards * cut(m, ROLE_OUT, m->kv_heads, r.n_virtual) * m->head_dim;
    r.ffn = cut(m, ROLE_DOWN, m->ffn, s->tp);
    r.up = (m->family == MODEL_GPT2 ? 1 : 2) * r.ffn;
    r.stats = m->family == MODEL_GPT2 ? 2 : 1;
    r.split = s->sp ? s->tp : 1;
    r.ring = s->cp > 1;
    count_layers(&r, m, s, pp, workload_micros(w, s));
    count_vocabulary(&r, m);
    r.elements = count_elements(&r, m, 1);
    r.owned = count_elements(&r, m, s->zero ? s->dp : 1);
    return r;
}

/* The buffers below are counted for as many rows as ranks share the stream: one row of that and
 * `split` rows of everything else. */

/* What attention leaves: its result and log-sum-exp. */
static int64_t attended_bytes(const struct share *r, int64_t e)
{
    return r->split * (e * r->q + 4 * r->heads);
}

/* struct layer_slot, but for x and what attention leaves. */
static int64_t layer_bytes(const struct model *m, const struct share *r, int64_t e)
{
    int64_t normed = e * m->hidden + 4 * r->stats, qkv = e * (r->q + 2 * r->kv);

    return 4 * m->hidden + 2 * normed + r->split * (qkv + 4 * r->up + e * r->ffn);
}

/* Kept from the forward to the backward pass of a microbatch: struct slot. */
static int64_t slot_bytes(const struct model *m, const struct share *r, int64_t e,
                          enum recompute recompute)
{
    int64_t stream = 4 * m->hidden, layer = 0;

    if (recompute != RECOMPUTE_FULL)
        layer = layer_bytes(m, r, e);
    if (recompute == RECOMPUTE_NONE)
        layer += attended_bytes(r, e);
    return r->slot_layers * (stream + layer) + stream + 8 * r->split +
           (r->is_last ? e * m->hidden + 4 * r->stats : 0);
}

/* struct ring: keys and values that go round, and their gradients, two of each. */
static int64_t ring_bytes(const struct share *r, int64_t e)
{
    return r->ring ? 2 * (e + 4) * 2 * r->kv : 0;
}

/* Used by layer after layer: struct scratch. */
static int64_t scratch_bytes(const struct model *m, const struct share *r, int64_t e,
                             enum recompute recompute)
{
    int64_t qkv = r->q + 2 * r->kv, wide = most(most(r->ffn, r->q), r->wide_vocab);
    int64_t stream = 4 * m->hidden * (r->is_pipeline ? 3 : 2), row = 4 * (wide + qkv + 3);

    if (r->split > 1) /* gathered rows */
        row += 4 * m->hidden;
    if (e < 4) {
        stream += 2 * m->hidden;
        row += 2 * most(most(r->up, qkv), r->wide_vocab);
    }
    if (r->shards > 1) /* what they add up, and of the loss */
        row += 4 * r->shards * (m->hidden + 3);
    if (recompute == RECOMPUTE_FULL)
        stream += layer_bytes(m, r, e);
    if (recompute != RECOMPUTE_NONE)
        stream += attended_bytes(r, e);
    return stream + r->split * (row + ring_bytes(r, e));
}

/* The attention kernel's own, of one thread: a head's keys and values, and a block of rows of
 * scores with their gradients, in bf16 also rounded. */
static int64_t attention_bytes(const struct model *m, int64_t tokens)
{
    return 4 * (tokens * (2 * m->head_dim + ATTENTION_ROWS * 5 / 2) +
                ATTENTION_ROWS * (m->head_dim + 1));
}

/* Gradients that sp sums over tp: of everything that is not cut. */
static int64_t partial_elements(const struct share *r, const struct model *m, int64_t owners)
{
    int64_t norm = owned(m->hidden, 1, owners);

    if (r->split == 1 || r->same_bits)
        return 0;
    return r->layers * (m->family == MODEL_GPT2 ? 6 : 2) * norm + first_vectors(r, m, owners) +
           last_vectors(r, m, owners);
}

/* Rows of all that this rank counts in the gradient norm: of what several shards hold once. */
static int64_t counted_rows(const struct share *r, const struct model *m)
{
    int64_t h = m->hidden, layer, ends = 0;

    if (m->family == MODEL_GPT2)
        layer = 6 * h + 4 * r->shards * h + 4 * r->q + 2 * r->ffn;
    else
        layer = 2 * h + r->q + 2 * r->own_kv + 2 * r->shards * h + 2 * r->ffn;
    if (r->is_first)
        ends += r->table + (m->family == MODEL_GPT2 ? m->max_positions : 0);
    if (r->is_last)
        ends += (m->family == MODEL_GPT2 ? 2 : 1) * h + (m->tied ? 0 : r->head);
    return r->layers * layer + ends;
}

/* Numbers that the gradient norm is made of: one a shard of each part of what is cut. */
static int64_t norm_places(const struct share *r, const struct model *m)
{
    int64_t n = r->n_virtual;

    if (m->family == MODEL_GPT2)
        return m->layers * (6 + 10 * n) + n + 1 + 2;
    return m->layers * (2 + 7 * n) + n + 1 + (m->tied ? 0 : n);
}

/* What --same-bits keeps besides: spans of gradients, one a level of the tree over leaves;
 * numbers of the norm; sums of blocks of rows. A tied head on the embedding's stage has gradients
 * of its own. */
static int64_t same_bits_bytes(const struct share *r, const struct model *m, int64_t sums,
                               int64_t owners, int levels)
{
    int64_t table = 0;

    if (!r->same_bits)
        return 0;
    if (m->tied && r->is_first && r->is_last)
        table = owned(r->table, m->hidden, owners);
    return 4 * (levels * sums + (levels + 1) * table) +
           8 * (counted_rows(r, m) + norm_places(r, m)) +
           4 * r->n_virtual / r->split * r->stats * m->hidden;
}

/* Resident pages of the other ranks' buffers: of each buffer that n ranks reduce together a rank
 * sums its part in all of them. */
static int64_t foreign_bytes(int64_t n, int64_t bytes, int64_t buffers)
{
    return (n - 1) * least(bytes, bytes / n + buffers * (int64_t)FAULT_AROUND_BYTES);
}

/* Parameters and what the optimizer keeps of them (struct params). */
static void count_state(struct memory_need *need, const struct share *r, const struct model *m,
                        const struct spec *s, int64_t e)
{
    bool dealt = s->zero && s->dp > 1, sharded = dealt && s->zero == 3;
    int64_t kept = sharded ? r->owned : r->elements;

    need->params = kept * e;
    need->grads = kept * 4;
    need->moments = r->owned * 8;
    if (dealt && !sharded) /* two buckets, owner by owner, where there is more than one */
        need->grads +=
            4 * least(s->dp * r->owned, 2 * (MEMORY_BUCKET + largest_tensor(r, m, s->dp)));
    if (e < 4)
        need->master = (dealt ? r->owned : r->elements) * 4;
    if (e < 4 && dealt && !sharded)
        need->params += 4 * count_vectors(r, m);
}

static struct memory_need need_of(const struct model *m, const struct spec *s,
                                  const struct workload *w, bool saves, int pp)
{
    struct share r = share_of(m, s, w, pp);
    int64_t tokens = w->seq_length / s->cp, rows = workload_micro(w, s) * tokens,
            e = dtype_bytes(w->dtype);
    int64_t streams = r.slots * (2 * r.slot_layers + 1);
    struct memory_need need = { 0 };
    bool dealt = s->zero && s->dp > 1, sharded = dealt && s->zero == 3;
    int64_t windows = sharded ? window_bytes(&r, m, e, s->dp) : 0;

    count_state(&need, &r, m, s, e);
    need.activations = r.slots * rows / r.split * slot_bytes(m, &r, e, w->recompute);
    need.workspace = rows / r.split * scratch_bytes(m, &r, e, w->recompute) + windows +
                     4 * partial_elements(&r, m, sharded ? s->dp : 1) + attention_bytes(m, tokens) +
                     same_bits_bytes(&r, m, sharded ? r.owned : r.elements, sharded ? s->dp : 1,
                                     same_bits_tree_levels(w, s));
    if (m->family == MODEL_LLAMA)
        need.workspace += 4 * tokens * m->head_dim; /* rotary table */
    if (saves)                                      /* replicas share the writing */
        need.staging = need.params / (sharded ? 1 : s->dp) / s->cp +
                       (need.master + need.moments) / (s->zero ? 1 : s->dp) / s->cp + SAVING_BYTES;
    need.overhead =
        PROGRAM_BYTES +
        foreign_bytes(s->tp, (streams + 1) * rows / r.split * 4 * m->hidden, streams + 1) +
        foreign_bytes(dealt ? s->dp : s->dp * s->cp, sharded ? windows : need.grads,
                      sharded ? 2 : need.grads / (4 * MEMORY_BUCKET) + 1) +
        foreign_bytes(dealt ? s->cp : 1, 4 * r.owned, 1) + rows * ring_bytes(&r, e);
    need.total = need.params + need.grads + need.moments + need.master + need.activations +
                 need.workspace + need.staging + need.overhead;
    return need;
}

/* Whether nothing below can overflow: a bound that is generous by some powers of two, where sizes
 * that any machine could have are many more below it. */
static bool is_countable(const struct model *m, const struct workload *w, const struct spec *s)
{
    double heads = m->heads + 2.0 * m->kv_heads + 2.0 * w->same_bits;
    double widths = (double)m->hidden + heads * (double)m->head_dim + 3.0 * (double)m->ffn +
                    (double)m->vocab + (m->family == MODEL_GPT2 ? (double)m->max_positions : 0);
    double rows = (double)workload_micro(w, s) * (double)w->seq_length, layers = m->layers + 2.0;

    return widths * layers * (512 * rows + 256 * (double)m->hidden) < (double)MEMORY_MOST;
}

struct memory_need memory_estimate(const struct model *m, const struct spec *s,
                                   const struct workload *w, bool saves)
{
    struct memory_need largest = { 0 };

    if (!is_countable(m, w, s))
        return (struct memory_need){ .total = MEMORY_MOST };
    for (int pp = 0; pp < s->pp; pp++) {
        struct memory_need need = need_of(m, s, w, saves, pp);

        if (need.total > largest.total)
            largest = need;
    }
    return largest;
}
