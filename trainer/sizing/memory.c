/* trainer/sizing/memory.c - see trainer/sizing/memory.h. */
#include "trainer/sizing/memory.h"

#include "layout/family.h"
#include "layout/same_bits.h"
#include "trainer/sizing/activations.h"
#include "trainer/sizing/step_buffers.h"

enum {
    ATTENTION_ROWS = 64, /* of scores at a time: kernels/cpu/attention.c's block */
    /* measured: program and libraries, the code that oneDNN generates and its packed operands,
     * small buffers of collectives; 18 MiB with one thread, 30 with two */
    PROGRAM_BYTES = 36 << 20,
    /* measured: HDF5 and OpenSSL while they write, and a manifest */
    SAVING_BYTES = 10 << 20,
    /* when a rank touches a page of another rank, the kernel also maps the pages around it */
    FAULT_AROUND_BYTES = 64 << 10,
    BUCKET_BYTES = 4 * PARAM_BUCKET,
};

tp_status memory_model_make(struct memory_model *out, const struct model *m, struct arena *arena,
                            struct tp_err *err)
{
    *out = (struct memory_model){ .model = m, .cuts = model_cuts_of(m) };
    return param_tensors_list(&out->tensors, m, arena, err);
}

/* ---- buffers ---- */

/* Whether two ranks have the same parameters of each part of a model. */
static bool has_same_units(const struct param_rank *a, const struct param_rank *b)
{
    return a->spec.tp == b->spec.tp && a->spec.dp == b->spec.dp && a->spec.zero == b->spec.zero &&
           a->spec.sp == b->spec.sp && a->spec.ep == b->spec.ep &&
           (a->spec.pp > 1) == (b->spec.pp > 1) && a->dtype == b->dtype &&
           a->same_bits == b->same_bits && a->n_virtual == b->n_virtual;
}

/* The parameters of each part of the model. tp-run tries many workloads at a spec. */
static const struct param_units *find_units(struct memory_model *mm, const struct spec *s,
                                            const struct workload *w)
{
    const struct param_rank r = param_rank_make(s, 0, w->dtype, w->same_bits, mm->tensors.ties);

    if (!mm->has_units || !has_same_units(&mm->units.rank, &r))
        mm->units = param_units_count(&mm->tensors, &r);
    mm->units.rank = r;
    mm->has_units = true;
    return &mm->units;
}

/* Whether nothing below can overflow. The bound refuses some sizes that would not overflow, but
 * real machines are far smaller than those. */
static bool is_countable(const struct model *m, const struct workload *w, const struct spec *s)
{
    double heads = m->heads + 2.0 * m->kv_heads + 2.0 * w->same_bits;
    double positions =
        family_of(m)->position == FAMILY_LEARNED ? (double)family_dim_size(DIM_POSITIONS, m) : 0;
    double ffn = (double)family_dim_size(m->experts ? DIM_EXPERT_FFN : DIM_FFN, m);
    double widths = (double)m->hidden + heads * (double)m->head_dim + (double)m->vocab + positions +
                    3.0 * ffn * (m->experts ? m->experts : 1) +
                    m->experts_per_token * (double)m->hidden;
    double rows = (double)workload_micro(w, s) * (double)w->seq_length, layers = m->layers + 2.0;

    return widths * layers * (512 * rows + 256 * (double)m->hidden) < (double)MEMORY_MOST;
}

bool memory_rank_count(struct memory_rank *out, struct memory_model *mm, const struct spec *s,
                       const struct workload *w, int pp)
{
    struct param_spans spans = { 0 };
    struct activations_layer layer = { 0 };
    struct activations slot = { .layers = &layer };
    struct activations_scratch scratch = { 0 };
    struct step_buffers step = { 0 };
    struct param_stage stage;

    if (!is_countable(mm->model, w, s))
        return false;
    *out = (struct memory_rank){ .dims = rank_dims_make(mm->model, &mm->cuts, s, w, pp) };
    stage = (struct param_stage){ .is_first = out->dims.is_first,
                                  .is_last = out->dims.is_last,
                                  .n_layers = out->dims.n_layers,
                                  .model_layers = mm->model->layers,
                                  .n_levels = same_bits_tree_levels(w, s) };
    out->params = param_sizes_count(find_units(mm, s, w), &stage);
    param_spans_take(&spans, &out->params, &out->pools);
    activations_take(&slot, out->dims.n_slots, &out->dims, &out->pools);
    activations_scratch_take(&scratch, &out->dims, &out->pools);
    step_buffers_take(&step, &out->dims, &out->pools);
    return true;
}

/* ---- what is not taken from pools ---- */

/* The attention kernel's own memory for one thread: a head's keys and values, and a block of rows
 * of scores with their gradients, in bf16 also rounded, and the slopes of a cap. */
static int64_t attention_bytes(const struct rank_dims *d)
{
    int64_t scores = ATTENTION_ROWS * 5 / 2 + (d->caps_scores ? ATTENTION_ROWS : 0);

    return 4 * (d->seq * (2 * d->head_dim + scores) + ATTENTION_ROWS * (d->head_dim + 1));
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Pages of other ranks' buffers that are resident in this rank: when n ranks reduce a buffer, each
 * rank sums one part of it, and reads this part in all n copies. */
static int64_t foreign_bytes(int64_t n, int64_t bytes, int64_t buffers)
{
    return (n - 1) * least(bytes, bytes / n + buffers * (int64_t)FAULT_AROUND_BYTES);
}

static int64_t overhead_of(const struct memory_rank *r, const struct spec *s)
{
    const struct rank_dims *d = &r->dims;
    int64_t rows = d->sequences * d->seq, residual = rows / d->split * d->hidden * 4;
    int64_t residuals = d->n_slots * (2 * d->stage_layers + 1) + 1;
    int64_t ring = d->is_ring ? rows * 4 * d->kv_width * (dtype_bytes(d->dtype) + 4) : 0;
    int64_t grads =
        buffer_pools_bytes(&r->pools, BUFFER_GRADS) + buffer_pools_bytes(&r->pools, BUFFER_BUCKETS);
    int64_t units = buffer_pools_bytes(&r->pools, BUFFER_UNITS);
    bool zero3 = r->params.is_sharded, zero = r->params.is_partitioned;

    return PROGRAM_BYTES + foreign_bytes(s->tp, residuals * residual, residuals) +
           foreign_bytes(zero ? s->dp : s->dp * s->cp, zero3 ? units : grads,
                         zero3 ? 2 : grads / BUCKET_BYTES + 1) +
           foreign_bytes(zero ? s->cp : 1, 4 * r->params.n_owned, 1) + ring;
}

/* Replicas share the writing, so each copies a part. */
int64_t memory_staging_bytes(const struct memory_rank *r, const struct spec *s)
{
    int64_t weights = buffer_pools_bytes(&r->pools, BUFFER_WEIGHTS);
    int64_t optimizer = buffer_pools_bytes(&r->pools, BUFFER_MASTERS) +
                        buffer_pools_bytes(&r->pools, BUFFER_MOMENTS);
    int64_t replicas = (int64_t)s->dp * s->cp / (s->ep > 1 ? s->ep : 1); /* of the experts */

    if (s->ep > 1 && r->params.is_sharded) /* each rank has its own rows of its experts */
        return weights + optimizer + SAVING_BYTES;
    if (s->ep > 1)
        return (weights + optimizer) / replicas + SAVING_BYTES;
    return weights / (r->params.is_sharded ? 1 : s->dp) / s->cp +
           optimizer / (s->zero ? 1 : s->dp) / s->cp + SAVING_BYTES;
}

/* Threads that share the attention of a microbatch: each takes a head of a sequence at a time. */
static int64_t attention_threads(const struct rank_dims *d, int threads)
{
    return threads < 1 ? 1 : least(threads, d->sequences * d->heads);
}

static struct memory_need need_of(const struct memory_rank *r, const struct spec *s, int threads,
                                  bool saves)
{
    const struct buffer_pools *p = &r->pools;
    struct memory_need n = {
        .per_thread = attention_bytes(&r->dims),
        .params = buffer_pools_bytes(p, BUFFER_WEIGHTS),
        .grads = buffer_pools_bytes(p, BUFFER_GRADS) + buffer_pools_bytes(p, BUFFER_BUCKETS),
        .master = buffer_pools_bytes(p, BUFFER_MASTERS),
        .moments = buffer_pools_bytes(p, BUFFER_MOMENTS),
        .activations = buffer_pools_bytes(p, BUFFER_ACTIVATIONS),
        .workspace = buffer_pools_bytes(p, BUFFER_WORKSPACE) + buffer_pools_bytes(p, BUFFER_UNITS) +
                     buffer_pools_bytes(p, BUFFER_NUMBERS) + buffer_pools_bytes(p, BUFFER_HOST) +
                     attention_bytes(&r->dims) * attention_threads(&r->dims, threads),
        .overhead = overhead_of(r, s),
    };

    if (saves)
        n.staging = memory_staging_bytes(r, s);
    n.total = n.params + n.grads + n.master + n.moments + n.activations + n.workspace + n.staging +
              n.overhead;
    return n;
}

/* A stage has no more layers than the one before it, and keeps no more microbatches. So of all
 * stages between the ends the first is the largest. */
int memory_stages(int out[MEMORY_STAGES], int pp)
{
    const int ends[] = { 0, 1, pp - 1 };
    int n = 0;

    for (int i = 0; i < MEMORY_STAGES; i++)
        if (ends[i] < pp && (n == 0 || ends[i] > out[n - 1]))
            out[n++] = ends[i];
    return n;
}

struct memory_need memory_estimate(struct memory_model *mm, const struct spec *s,
                                   const struct workload *w, bool saves)
{
    struct memory_need largest = { 0 };
    int stages[MEMORY_STAGES] = { 0 }, n = memory_stages(stages, s->pp);

    for (int i = 0; i < n; i++) {
        struct memory_rank rank;
        struct memory_need need;

        if (!memory_rank_count(&rank, mm, s, w, stages[i]))
            return (struct memory_need){ .total = MEMORY_MOST };
        need = need_of(&rank, s, w->threads, saves);
        if (need.total > largest.total)
            largest = need;
    }
    return largest;
}
