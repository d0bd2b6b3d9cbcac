/* orchestrator/fit.c - see orchestrator/fit.h. */
#include "orchestrator/fit.h"

#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/size.h"
#include "layout/layout.h"
#include "layout/memory.h"
#include "layout/plan.h"
#include "orchestrator/cost.h"

enum { CONFIG_MAX = 16 << 20, WHY_MAX = 320, SEQ_GUESS = 128, MICROS_MAX = 4096 };

struct fit {
    const struct job *job;
    const struct book *book;
    struct arena *arena;
    bool has_model;
    bool sets_micro, sets_recompute; /* the command line leaves it to tp-run */
    int same_bits;                   /* --same-bits of tp-train, or 0 */
    struct model model;
    struct plan plan; /* of --plan */
    struct tensor *tensors;
    int n_tensors;
    struct cost_work work;
    struct cost_model cost;
};

/* ---- opening ---- */

/* tp-train's --plan, when the command has one: names and cuts of other models. */
static tp_status read_plan(struct fit *f, struct tp_err *err)
{
    const char *given = job_flag(f->job, "--plan");
    char path[PATH_MAX];
    char *text;
    size_t size;
    tp_status st;

    if (!given || !f->job->is_tp_train)
        return TP_OK;
    snprintf(path, sizeof path, "%.2000s%s%.2000s", given[0] == '/' ? "" : f->job->dir,
             given[0] == '/' ? "" : "/", given);
    if ((st = file_read_all(&text, &size, path, PLAN_BYTES_MAX, f->arena, err)))
        return st;
    f->model.plan = &f->plan;
    return plan_parse(&f->plan, text, size, path, f->arena, err);
}

static tp_status read_model(struct fit *f, struct tp_err *err)
{
    const char *given = f->job->layouts.model;
    char path[PATH_MAX];
    char *text;
    size_t size;
    tp_status st;

    if (!given)
        return TP_OK;
    snprintf(path, sizeof path, "%.4000s%s", given, file_is_dir(given) ? "/config.json" : "");
    st = file_read_all(&text, &size, path, CONFIG_MAX, f->arena, err);
    if (st == TP_OK)
        st = model_parse(&f->model, text, size, path, f->arena, err);
    if (st == TP_OK)
        st = read_plan(f, err);
    if (st == TP_OK)
        st = model_params(&f->tensors, &f->n_tensors, &f->model, f->work.dtype, f->arena, err);
    f->has_model = st == TP_OK;
    return st;
}

static void fit_to_book(struct fit *f)
{
    struct cost_sample samples[COST_SAMPLES_MAX];
    int n = 0;

    if (!f->has_model)
        return;
    for (int i = 0; f->book && i < f->book->n_measured && n < COST_SAMPLES_MAX; i++) {
        struct tp_err ignored;

        samples[n].seconds = f->book->measured[i].seconds;
        if (samples[n].seconds > 0 &&
            way_parse(&samples[n].way, f->book->measured[i].way, &ignored) == TP_OK)
            n++;
    }
    cost_fit(&f->cost, &f->work, samples, n);
}

tp_status fit_open(struct fit **out, const struct job *job, const struct book *book,
                   struct arena *arena, struct tp_err *err)
{
    struct fit *f = arena_alloc(arena, sizeof *f);
    const char *dtype = job->layouts.dtype, *recompute = job_flag(job, "--recompute");
    const char *same_bits = job->is_tp_train ? job_flag(job, "--same-bits") : NULL;
    tp_status st;

    if (!f)
        return tp_fail(err, TP_E_NOMEM, "no memory to plan");
    *f = (struct fit){ .job = job, .book = book, .arena = arena };
    f->same_bits = same_bits ? (int)strtol(same_bits, NULL, 10) : 0;
    f->sets_micro = job->is_tp_train && !job->layouts.micro && !f->same_bits;
    f->sets_recompute = job->is_tp_train && !recompute;
    f->work =
        (struct cost_work){ .model = &f->model,
                            .dtype = dtype && strcmp(dtype, "bf16") == 0 ? DTYPE_BF16 : DTYPE_F32,
                            .batch = job->layouts.batch ? job->layouts.batch : 1,
                            .seq = job->layouts.seq ? job->layouts.seq : SEQ_GUESS,
                            .micro = job->layouts.micro || !f->same_bits ? job->layouts.micro : 1 };
    if (recompute)
        recompute_parse(&f->work.recompute, recompute);
    if ((st = read_model(f, err)))
        return st;
    fit_to_book(f);
    *out = f;
    return TP_OK;
}

const struct job *fit_job(const struct fit *f)
{
    return f->job;
}

int fit_layers(const struct fit *f)
{
    return f->has_model ? f->model.layers : 0;
}

bool fit_stages_even(const struct fit *f, int pp)
{
    int layers = fit_layers(f);

    return layers < pp || 3 * (int64_t)pp * ((layers + pp - 1) / pp) <= 4 * (int64_t)layers;
}

/* ---- what speaks against a layout ---- */

__attribute__((format(printf, 3, 4))) static bool refuse(struct fit *f, struct candidate *c,
                                                         const char *fmt, ...)
{
    char text[WHY_MAX];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    c->why = arena_strdup(f->arena, text);
    c->why = c->why ? c->why : "no memory to say why";
    return false;
}

static bool check_ranks(struct fit *f, struct candidate *c, int max_ranks)
{
    const struct job *j = f->job;

    if (c->ranks > max_ranks)
        return refuse(f, c, "needs %d ranks, there are %d", c->ranks, max_ranks);
    if (c->ranks < j->layouts.min_ranks)
        return refuse(f, c, "fewer ranks than layouts.min_ranks");
    if (j->layouts.max_ranks && c->ranks > j->layouts.max_ranks)
        return refuse(f, c, "more ranks than layouts.max_ranks");
    return true;
}

static bool check_axes(struct fit *f, struct candidate *c)
{
    const struct spec *p = &c->way.spec;
    const struct {
        const char *name;
        bool used;
    } axes[] = { { "tp", p->tp > 1 },       { "pp", p->pp > 1 },      { "vpp", p->vpp > 1 },
                 { "cp", p->cp > 1 },       { "dp", p->dp > 1 },      { "sp", p->sp },
                 { "zero1", p->zero == 1 }, { "zero3", p->zero == 3 } };

    for (size_t i = 0; f->job->layouts.n_allow == 0 && i < sizeof axes / sizeof axes[0]; i++)
        if (axes[i].used && !job_has_axis(f->job, axes[i].name))
            return refuse(f, c, "uses %s, which layouts.axes does not name", axes[i].name);
    return true;
}

static bool plan_allows_sp(const struct fit *f)
{
    const struct plan *plan = f->model.plan ? f->model.plan : plan_builtin(f->model.arch);

    for (int i = 0; i < plan->n; i++)
        if (plan->entries[i].cut == CUT_REPLICATED && plan->entries[i].role != ROLE_POSITIONS)
            return false;
    return true;
}

/* The model and the batch, whatever the microbatches. */
static bool check_shape(struct fit *f, struct candidate *c)
{
    const struct spec *p = &c->way.spec;
    struct tp_err why = { 0 };
    struct layout layout;

    if (f->same_bits && !spec_keeps_bits(p, f->same_bits))
        return refuse(f, c,
                      "--same-bits %d runs without cp at powers of two of tp (up to it) and dp",
                      f->same_bits);
    if (f->job->layouts.batch && f->work.batch % p->dp)
        return refuse(f, c, "the global batch of %" PRId64 " does not divide by dp%d",
                      f->work.batch, p->dp);
    if (p->cp > 1 && f->job->layouts.seq && f->work.seq % (2 * (int64_t)p->cp))
        return refuse(f, c, "cp cuts a sequence into %d blocks: %" PRId64 " tokens do not divide",
                      2 * p->cp, f->work.seq);
    if (!f->has_model)
        return true;
    if (layout_make(&layout, p, f->model.layers, f->tensors, f->n_tensors, f->arena, &why))
        return refuse(f, c, "%s", why.msg);
    if (p->sp && p->tp > 1 && !plan_allows_sp(f))
        return refuse(f, c, "sp needs a plan that cuts every product");
    if (p->sp && p->tp > 1 && f->work.dtype == DTYPE_BF16 && f->model.hidden % 2)
        return refuse(f, c, "sp in bf16 needs an even hidden size, not %" PRId64, f->model.hidden);
    return true;
}

bool fit_is_possible(struct fit *f, const struct spec *s)
{
    struct candidate c = { .way.spec = *s, .ranks = spec_world(s), .why = "" };

    return check_shape(f, &c);
}

/* What tp-train asks of a microbatch. */
static bool check_micro(struct fit *f, struct candidate *c, int64_t share, int64_t micro)
{
    const struct spec *p = &c->way.spec;

    if (share % micro)
        return refuse(f, c,
                      "microbatches of %" PRId64 " do not divide the %" PRId64
                      " sequences of a dp rank (global batch %" PRId64 ")",
                      micro, share, f->work.batch);
    if (p->vpp > 1 && share / micro % p->pp)
        return refuse(f, c,
                      "vpp runs microbatches in groups of pp: %" PRId64 " are no multiple of %d",
                      share / micro, p->pp);
    if (p->cp > 1 && f->job->layouts.seq && f->work.seq % (2 * (int64_t)p->cp))
        return refuse(f, c,
                      "cp cuts a sequence into %d blocks: its %" PRId64 " tokens do not divide",
                      2 * p->cp, f->work.seq);
    if (p->sp && f->job->layouts.seq && micro * f->work.seq / p->cp % p->tp)
        return refuse(f, c, "sp deals tokens over tp: %" PRId64 " do not divide by %d",
                      micro * f->work.seq / p->cp, p->tp);
    return true;
}

/* ---- how well ---- */

static double seconds_of(const struct fit *f, const struct way *w, bool *measured)
{
    char text[WAY_TEXT_MAX];

    *measured = false;
    way_format(text, w);
    for (int i = 0; f->book && i < f->book->n_measured; i++)
        if (strcmp(f->book->measured[i].way, text) == 0) {
            *measured = true;
            return f->book->measured[i].seconds;
        }
    return f->has_model ? cost_predict(&f->cost, &f->work, w) : 0;
}

static int64_t memory_of(const struct fit *f, const struct way *w, int64_t micro)
{
    struct memory_run run = { .dtype = f->work.dtype,
                              .seq = f->work.seq,
                              .micro = micro,
                              .micros = f->work.batch / w->spec.dp / micro,
                              .same_bits = f->same_bits,
                              .recompute = w->recompute ? w->recompute : f->work.recompute,
                              .saves = true };

    if (!f->has_model)
        return 0;
    return memory_estimate(&f->model, &w->spec, &run).total;
}

/* One pair of microbatch and recomputation: takes c's place in *best when it fits and is faster
 * (the first of equals stays). */
static void try_way(struct fit *f, struct candidate *best, const struct candidate *c, int64_t micro,
                    int64_t *least)
{
    struct candidate t = *c;

    t.memory = memory_of(f, &t.way, micro);
    *least = t.memory < *least ? t.memory : *least;
    if (f->job->layouts.memory && t.memory > f->job->layouts.memory)
        return;
    t.seconds = seconds_of(f, &t.way, &t.measured);
    t.legal = true;
    if (!best->legal || t.seconds < best->seconds)
        *best = t;
}

void fit_check(struct fit *f, struct candidate *c, int max_ranks)
{
    char need[SIZE_TEXT_MAX], limit[SIZE_TEXT_MAX];
    struct candidate best = { 0 };
    int64_t share, least = INT64_MAX, whole;

    if (!check_ranks(f, c, max_ranks) || !check_axes(f, c) || !check_shape(f, c))
        return;
    share = f->work.batch / c->way.spec.dp;
    share = share > 0 ? share : 1;
    whole = f->sets_micro || !f->work.micro ? share : f->work.micro;
    for (int again = RECOMPUTE_NONE; again <= (f->sets_recompute ? RECOMPUTE_FULL : RECOMPUTE_NONE);
         again++)
        for (int64_t n = 1; n <= whole && n <= (f->sets_micro ? MICROS_MAX : 1); n++) {
            struct candidate t = *c;
            int64_t micro = whole / n;

            if (whole % n)
                continue;
            if (!check_micro(f, &t, share, micro)) {
                c->why = c->why[0] ? c->why : t.why;
                continue;
            }
            t.why = "";
            t.way.micro = f->sets_micro && micro != share ? micro : 0;
            t.way.recompute = (enum recompute)again;
            try_way(f, &best, &t, micro, &least);
        }
    if (best.legal) {
        *c = best;
    } else if (least < INT64_MAX) {
        c->memory = least;
        refuse(f, c, "a rank needs %s%s, layouts.memory is %s", size_format(need, least),
               f->sets_micro || f->sets_recompute ? " at the least" : "",
               size_format(limit, f->job->layouts.memory));
    }
}
