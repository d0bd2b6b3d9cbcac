/* trainer/run_summary.c - see trainer/run_summary.h. */
#include "trainer/run_summary.h"

#include <stdio.h>
#include <string.h>

#include "core/size.h"
#include "layout/family.h"

static int64_t parameters(const struct trainer *t)
{
    int64_t n = 0;

    for (int i = 0; i < t->layout.n_tensors; i++) {
        const struct tensor *x = &t->layout.tensors[i];
        struct box whole = box_whole(x->ndim, x->shape);

        if (strcmp(x->group, GROUP_PARAM) == 0)
            n += box_elements(&whole);
    }
    return n;
}

static void line_model(char *buf, const struct trainer *t)
{
    const struct model *m = t->model;
    char experts[64] = "";

    if (m->experts)
        snprintf(experts, sizeof experts, " in each of %d experts, %d per token", m->experts,
                 m->experts_per_token);
    snprintf(buf, RUN_SUMMARY_MAX,
             "model: %s, %s, %lld parameters, %d layers, hidden %lld, %d heads of %lld (%d "
             "key-value), ffn %lld%s, vocab %lld%s, %s",
             t->config->model_path, family_of(m)->architecture, (long long)parameters(t), m->layers,
             (long long)m->hidden, m->heads, (long long)m->head_dim, m->kv_heads,
             (long long)family_dim_size(DIM_EXPERT_FFN, m), experts, (long long)m->vocab,
             m->tied ? " (tied head)" : "",
             t->config->dtype == DTYPE_BF16 ? "bf16 with fp32 masters" : "fp32");
}

static const char *plural(int64_t n)
{
    return n == 1 ? "" : "s";
}

/* KV heads of this rank. With --same-bits its shards may have copies, which do not count. */
static int64_t own_kv_heads(const struct trainer *t)
{
    int64_t all = t->net.kv_heads * t->net.shards, most = t->model->kv_heads / t->config->spec.tp;

    most = most < 1 ? 1 : most;
    return all < most ? all : most;
}

/* What a rank computes on. */
static void rank_processor(char *buf, size_t n, const struct device *d)
{
    if (d->threads)
        snprintf(buf, n, "of %d thread%s", d->threads, plural(d->threads));
    else
        snprintf(buf, n, "with a GPU each");
}

static void line_mesh(char *buf, const struct trainer *t)
{
    const struct network *n = &t->net;
    int world = spec_world(&t->config->spec);
    char spec[SPEC_TEXT_MAX], processor[40];

    rank_processor(processor, sizeof processor, t->device);
    snprintf(buf, RUN_SUMMARY_MAX,
             "mesh: %s, %d rank%s %s; rank 0 has %d layer%s, %lld head%s, %lld key-value head%s%s, "
             "%lld features, %lld rows of the vocabulary",
             spec_format(spec, &t->config->spec), world, plural(world), processor, n->n_layers,
             plural(n->n_layers), (long long)(n->heads * n->shards), plural(n->heads * n->shards),
             (long long)own_kv_heads(t), plural(own_kv_heads(t)),
             t->parallel.kv ? " (shared by neighbours)" : "", (long long)(n->ffn * n->shards),
             (long long)(n->is_first ? n->table.total : n->logit.total));
}

static void line_batch(char *buf, const struct trainer *t)
{
    const struct train_config *c = t->config;
    int64_t micros = train_config_micros(c);
    char replicas[48] = "", cut[96] = "";

    if (c->spec.dp > 1)
        snprintf(replicas, sizeof replicas, "each of %d dp ranks has ", c->spec.dp);
    if (c->spec.cp > 1)
        snprintf(cut, sizeof cut, " cut over %d cp ranks in two blocks of %lld", c->spec.cp,
                 (long long)(t->net.seq / 2));
    snprintf(
        buf, RUN_SUMMARY_MAX,
        "batch: %lld sequences of %lld tokens%s; %s%lld microbatch%s of %lld; %s has %lld samples",
        (long long)c->global_batch_size, (long long)c->seq_length, cut, replicas, (long long)micros,
        micros == 1 ? "" : "es", (long long)c->micro_batch_size, t->data.path,
        (long long)t->data.samples);
}

/* Raw bytes are easily given by mistake, so they are announced. */
static void line_data(char *buf, const struct trainer *t)
{
    buf[0] = '\0';
    if (t->data.tokens.is_bytes)
        snprintf(buf, RUN_SUMMARY_MAX,
                 "data: %s is read as raw bytes, each a token from 0 to 255; the model's "
                 "vocabulary has %lld tokens",
                 t->data.path, (long long)t->model->vocab);
}

/* Number of FSDP units; *largest gets the parameters of the largest. */
static int count_units(const struct params *p, int64_t *largest)
{
    int units = 0;

    *largest = 0;
    for (int unit = 0, end; unit < p->n_buckets; unit = end, units++) {
        const struct param_bucket *last;
        int64_t n = 0;

        end = params_unit_end(p, unit);
        last = &p->buckets[end - 1];
        for (int i = p->buckets[unit].first; i < last->first + last->n; i++)
            n += p->list[i].n;
        *largest = n > *largest ? n : *largest;
    }
    return units;
}

static void line_bytes(char *buf, const struct trainer *t)
{
    const struct trainer_size *s = &t->size;
    char a[SIZE_TEXT_MAX], b[SIZE_TEXT_MAX], c[SIZE_TEXT_MAX], d[SIZE_TEXT_MAX], e[SIZE_TEXT_MAX];
    char unsharded[SIZE_TEXT_MAX + 16] = "";

    if (t->params.sharded)
        snprintf(unsharded, sizeof unsharded, ", unsharded %s", size_format(a, s->unsharded));
    snprintf(buf, RUN_SUMMARY_MAX,
             "memory per rank: weights %s, gradients %s%s, optimizer %s, activations %s; total "
             "%s",
             size_format(a, s->params), size_format(b, s->grads), unsharded,
             size_format(c, s->moments), size_format(d, s->activations),
             size_format(e, s->shared + s->own));
}

static void line_zero3(char *buf, const struct trainer *t)
{
    char experts[64] = "";
    int64_t largest;
    int units;

    buf[0] = '\0';
    if (!t->params.sharded)
        return;
    units = count_units(&t->params, &largest);
    if (t->config->spec.ep > 1)
        snprintf(experts, sizeof experts, ", those of experts over %d",
                 t->params.rank.n_expert_owners);
    snprintf(buf, RUN_SUMMARY_MAX,
             "zero3: weights and gradients are partitioned over %d ranks%s; %d times per step one "
             "of %d FSDP units is gathered (the largest has %lld parameters)",
             t->params.n_owners, experts, t->units.n_visits, units, (long long)largest);
}

/* Append for example "36 all-reduces over tp (68.0 MiB), " to buf; nothing when there are no
 * calls. */
static void append_calls(char *buf, int64_t calls, int64_t bytes, const char *what)
{
    size_t at = strlen(buf);
    char size[SIZE_TEXT_MAX];

    if (calls)
        snprintf(buf + at, RUN_SUMMARY_MAX - at, "%lld %s (%s), ", (long long)calls, what,
                 size_format(size, bytes));
}

static const char *gradients_of(const struct trainer *t)
{
    bool cp = t->config->spec.cp > 1;

    if (t->params.n_owners > 1)
        return cp ? "of gradients and weights over dp, cp" : "of gradients and weights over dp";
    return cp ? "of gradients over dp, cp" : "of gradients over dp";
}

/* Of a device that can record steps. */
static void line_steps(char *buf, const struct trainer *t)
{
    buf[0] = '\0';
    if (device_has_graphs(t->device) && t->graph.why_not)
        snprintf(buf, RUN_SUMMARY_MAX, "steps: queued one operation at a time, because %s",
                 t->graph.why_not);
    else if (device_has_graphs(t->device))
        snprintf(buf, RUN_SUMMARY_MAX,
                 "steps: each is one CUDA graph after the first %d, unless a checkpoint is still "
                 "copied",
                 STEP_GRAPH_FIRST);
}

static void line_messages(char *buf, const struct trainer *t, const struct step_messages *m)
{
    const struct calls {
        int64_t calls, bytes;
        const char *what;
    } kinds[] = {
        { m->tp_calls, m->tp_bytes,
          t->net.split > 1 ? "gathers and reductions over tp" : "all-reduces over tp" },
        { m->kv_calls, m->kv_bytes, "over shared key-value heads" },
        { m->ep_calls, m->ep_bytes, "over ep" },
        { m->pp_calls, m->pp_bytes, "to other stages" },
        { m->embedding_calls, m->embedding_bytes, "of the tied head's gradient" },
        { m->cp_calls, m->cp_bytes, "along the ring of cp" },
        { m->dp_calls, m->dp_bytes, gradients_of(t) },
    };
    int64_t calls = m->few_words_calls, bytes = 0;
    char size[SIZE_TEXT_MAX];
    size_t at;

    if (spec_world(&t->config->spec) == 1) {
        snprintf(buf, RUN_SUMMARY_MAX, "communication per step: none, because there is one rank");
        return;
    }
    snprintf(buf, RUN_SUMMARY_MAX, "communication per step of rank 0: ");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        append_calls(buf, kinds[i].calls, kinds[i].bytes, kinds[i].what);
        calls += kinds[i].calls;
        bytes += kinds[i].bytes;
    }
    at = strlen(buf);
    snprintf(buf + at, RUN_SUMMARY_MAX - at, "%lld of scalars; total %lld (%s)",
             (long long)m->few_words_calls, (long long)calls, size_format(size, bytes));
}

static void line_pipeline(char *buf, const struct trainer *t)
{
    const struct schedule *s = &t->schedule;

    buf[0] = '\0';
    if (s->p > 1)
        snprintf(buf, RUN_SUMMARY_MAX,
                 "pipeline: %d stages of %d virtual stage%s, %d microbatch%s: the bubble adds %.1f "
                 "%% to the work; rank 0 keeps activations of %d of %d passes",
                 s->p, s->v, plural(s->v), s->m, s->m == 1 ? "" : "es",
                 100.0 * (s->p - 1) / ((double)s->v * s->m), s->ranks[0].n_slots, s->m * s->v);
}

static void line_same_bits(char *buf, const struct trainer *t)
{
    const struct train_config *c = t->config;
    int levels = t->params.pairwise.levels, shards = t->net.shards;
    char bytes[SIZE_TEXT_MAX];

    *buf = 0;
    if (!c->same_bits)
        return;
    snprintf(
        buf, RUN_SUMMARY_MAX,
        "same bits: as with tp %d at every layout with batch %lld and micro %lld; a rank emulates "
        "%d tensor shard%s, one thread for each, and keeps %d more span%s of gradients (%s)",
        c->same_bits, (long long)c->global_batch_size, (long long)c->micro_batch_size, shards,
        plural(shards), levels, plural(levels),
        size_format(bytes, t->size.grads / (1 + levels) * levels));
}

char *run_summary_line(char buf[RUN_SUMMARY_MAX], const struct trainer *t,
                       const struct step_messages *messages, int i)
{
    static void (*const lines[RUN_SUMMARY_LINES])(char *, const struct trainer *) = {
        line_model, line_mesh, line_batch,    line_data,      line_bytes,
        line_zero3, NULL,      line_pipeline, line_same_bits, line_steps,
    };

    if (lines[i])
        lines[i](buf, t);
    else
        line_messages(buf, t, messages);
    return buf;
}
