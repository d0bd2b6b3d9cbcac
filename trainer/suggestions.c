/* trainer/suggestions.c - see trainer/suggestions.h. */
#include "trainer/suggestions.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>

#include "core/size.h"
#include "layout/layout_check.h"
#include "layout/model_tensors.h"
#include "layout/suggest.h"
#include "trainer/logits.h"
#include "trainer/sizing/gpu_memory.h"
#include "trainer/snapshot_shard.h"

struct question {
    const struct train_config *asked;
    const struct model *model;
    struct tensor_kinds kinds; /* of the parameters; optimizer state is cut like them */
    struct memory_model memory;
    struct arena arena;
};

/* What the largest rank needs: on a GPU `gpu` and otherwise `cpu`, and its total. */
struct need {
    int64_t total;
    struct memory_need cpu;
    int64_t logits; /* for --logits */
    struct gpu_memory gpu;
};

/* c is checked. */
static struct need need_of(struct question *q, const struct train_config *c)
{
    const struct workload w = train_config_work(c);
    struct need n = { 0 };

    if (c->on_gpu) {
        n.gpu = gpu_memory_estimate(&q->memory, &c->spec, &w);
        n.total = n.gpu.total;
        return n;
    }
    n.cpu = memory_estimate(&q->memory, &c->spec, &w, c->ckpt != NULL);
    n.total = n.cpu.total;
    if (c->ckpt && c->ckpt_zstd && n.total < MEMORY_MOST) {
        int64_t more = snapshot_shard_compress_bytes(c->ckpt_zstd, c->threads, n.cpu.staging);

        n.cpu.staging += more;
        n.total += more;
    }
    if (c->logits && n.total < MEMORY_MOST) {
        n.logits = logits_bytes(c, q->model);
        n.total = n.logits < MEMORY_MOST - n.total ? n.total + n.logits : MEMORY_MOST;
    }
    return n;
}

/* Bytes that a rank needs with another spec; -1: the run is not possible. */
static int64_t bytes_at(struct question *q, const struct train_config *asked, const struct spec *s)
{
    struct train_config c = *asked;
    struct tp_err ignored = { 0 };

    c.spec = *s;
    return train_config_check(&c, q->model, &ignored) ? -1 : need_of(q, &c).total;
}

static tp_status question_open(struct question *q, const struct train_config *asked,
                               const struct model *m, struct tp_err *err)
{
    tp_status st;

    *q = (struct question){ .asked = asked, .model = m };
    st = model_kinds(&q->kinds, m, &q->arena, err);
    return st ? st : memory_model_make(&q->memory, m, &q->arena, err);
}

static bool would_run(void *ctx, const struct spec *s)
{
    struct question *q = ctx;
    int64_t need = bytes_at(q, q->asked, s);

    return need >= 0 && (q->asked->mem_bytes == 0 || need <= q->asked->mem_bytes);
}

static struct suggest suggest_of(struct question *q)
{
    return (struct suggest){ .asked = &q->asked->spec,
                             .n_layers = q->model->layers,
                             .kinds = q->kinds,
                             .fits = would_run,
                             .ctx = q };
}

/* Append the nearest layouts that would run to the message, if there are any. */
static void add_nearest(struct question *q, struct tp_err *err)
{
    const struct suggest near = suggest_of(q);
    struct spec specs[SUGGEST_MAX];
    struct tp_err why = *err;
    char text[SUGGEST_TEXT_MAX];
    int n = suggest_specs(specs, &near);

    if (n > 0)
        tp_fail(err, why.status, "%.700s; nearest that would run: %s", why.msg,
                suggest_text(text, specs, n, 0));
}

tp_status suggestions_check(struct train_config *checked, const struct train_config *asked,
                            const struct model *m, struct tp_err *err)
{
    struct question q;
    tp_status st;

    *checked = *asked;
    TP_TRY(question_open(&q, asked, m, err));
    st = layout_check(&asked->spec, m->layers, &q.kinds, err);
    if (!st)
        st = train_config_check(checked, m, err);
    if (st == TP_E_LAYOUT)
        add_nearest(&q, err);
done:
    arena_free(&q.arena);
    return st;
}

/* "--micro 1 (80 MiB), --recompute full (70 MiB), tp4 (50 MiB)": each of them alone is enough. */
struct options {
    char text[384];
    size_t used;
};

static void add_option(struct options *o, const char *name, int64_t need)
{
    char bytes[SIZE_TEXT_MAX];

    o->used += (size_t)snprintf(o->text + o->used, sizeof o->text - o->used, "%s%s (%s)",
                                o->used ? ", " : "", name, size_format(bytes, need));
}

/* Halve c's microbatch until the run fits; 0: it never fits. */
static int64_t micro_that_fits(struct question *q, const struct train_config *c)
{
    struct train_config smaller = *c;

    for (; smaller.micro_batch_size > 0; smaller.micro_batch_size /= 2) {
        int64_t need = bytes_at(q, &smaller, &c->spec);

        if (need >= 0 && need <= c->mem_bytes)
            return smaller.micro_batch_size;
    }
    return 0;
}

/* Try smaller microbatches, recomputation, and both. */
static void try_at_this_layout(struct options *o, struct question *q, const struct train_config *c)
{
    for (int again = (int)c->recompute; again < RECOMPUTE_COUNT; again++) {
        struct train_config other = *c;
        char more[32] = "", micro[32] = "", name[64];

        other.recompute = (enum recompute)again;
        other.micro_batch_size = micro_that_fits(q, &other);
        if (other.micro_batch_size == 0)
            continue;
        if (other.recompute != c->recompute)
            snprintf(more, sizeof more, "--recompute %s", recompute_name(other.recompute));
        if (other.micro_batch_size != c->micro_batch_size)
            snprintf(micro, sizeof micro, "--micro %lld", (long long)other.micro_batch_size);
        snprintf(name, sizeof name, "%s%s%s", more, *more && *micro ? " " : "", micro);
        add_option(o, name, bytes_at(q, &other, &c->spec));
    }
}

static void try_without_logits(struct options *o, struct question *q, const struct train_config *c)
{
    struct train_config other = *c;
    int64_t need;

    if (!c->logits || c->on_gpu)
        return;
    other.logits = NULL;
    need = bytes_at(q, &other, &c->spec);
    if (need >= 0 && need <= c->mem_bytes)
        add_option(o, "no --logits", need);
}

static void try_layouts(struct options *o, struct question *q)
{
    const struct suggest near = suggest_of(q);
    struct spec specs[SUGGEST_MAX];
    char text[SPEC_TEXT_MAX];
    int n = suggest_specs(specs, &near);

    for (int i = 0; i < n; i++)
        add_option(o, spec_format(text, &specs[i]), bytes_at(q, q->asked, &specs[i]));
}

enum { PARTS_MAX = 280 };

/* "weights 40 MiB, ..." */
static const char *list_parts(char out[PARTS_MAX], const struct need *n, bool on_gpu)
{
    char a[SIZE_TEXT_MAX], b[SIZE_TEXT_MAX], c[SIZE_TEXT_MAX], d[SIZE_TEXT_MAX], e[SIZE_TEXT_MAX];
    char logits[SIZE_TEXT_MAX + 16] = "";
    const struct memory_need *m = &n->cpu;

    if (n->logits)
        snprintf(logits, sizeof logits, ", --logits %s", size_format(a, n->logits));

    if (on_gpu)
        snprintf(out, PARTS_MAX, "tensors %s, kernels %s, CUDA %s, NCCL %s",
                 size_format(a, n->gpu.tensors), size_format(b, n->gpu.scratch),
                 size_format(c, n->gpu.cuda), size_format(d, n->gpu.collectives));
    else
        snprintf(out, PARTS_MAX,
                 "weights %s, gradients and optimizer %s, activations %s, saving %s, program %s%s",
                 size_format(a, m->params + m->master), size_format(b, m->grads + m->moments),
                 size_format(c, m->activations + m->workspace), size_format(d, m->staging),
                 size_format(e, m->overhead), logits);
    return out;
}

static tp_status too_large(const struct train_config *c, const struct need *need,
                           const char *instead, struct tp_err *err)
{
    char spec[SPEC_TEXT_MAX], total[SIZE_TEXT_MAX], mem[SIZE_TEXT_MAX], parts[PARTS_MAX];

    return tp_fail(
        err, TP_E_BUDGET, "%.400s does not fit at %s: a rank needs about %s of --mem %s (%s); %s%s",
        c->model_path, spec_format(spec, &c->spec), size_format(total, need->total),
        size_format(mem, c->mem_bytes), list_parts(parts, need, c->on_gpu),
        instead[0] ? "would fit: " : "no layout near it fits either: give more --mem", instead);
}

/* Kernel threads that fit in the memory that is left. per_thread is 0 on a GPU, and where the bytes
 * cannot be counted. */
static int threads_that_fit(const struct train_config *c, const struct need *need)
{
    const int64_t left = c->mem_bytes - need->total, per_thread = need->cpu.per_thread;

    if (per_thread == 0 || c->threads || left < 0 || left / per_thread >= INT_MAX)
        return INT_MAX;
    return 1 + (int)(left / per_thread);
}

tp_status suggestions_budget(int *most_threads, const struct train_config *asked,
                             const struct model *m, struct tp_err *err)
{
    struct train_config c = *asked;
    struct options instead = { .used = 0 };
    struct need need;
    struct question q = { .asked = asked };
    tp_status st;

    *most_threads = INT_MAX;
    if (c.mem_bytes == 0)
        return TP_OK;
    TP_TRY(train_config_check(&c, m, err));
    TP_TRY(question_open(&q, asked, m, err));
    need = need_of(&q, &c);
    *most_threads = threads_that_fit(&c, &need);
    if (need.total <= c.mem_bytes)
        goto done;
    if (need.total == MEMORY_MOST) {
        st = tp_fail(err, TP_E_BUDGET, "%s: the model is too large to count its bytes",
                     c.model_path);
        goto done;
    }
    try_without_logits(&instead, &q, &c);
    try_at_this_layout(&instead, &q, &c);
    try_layouts(&instead, &q);
    st = too_large(&c, &need, instead.used ? instead.text : "", err);
done:
    arena_free(&q.arena);
    return st;
}
