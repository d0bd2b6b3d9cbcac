/* orchestrator/plan/fit.c - see orchestrator/plan/fit.h. */
#include "orchestrator/plan/fit.h"

#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/size.h"
#include "layout/layout.h"
#include "layout/layout_check.h"
#include "layout/memory.h"
#include "layout/model_config.h"
#include "layout/model_tensors.h"
#include "layout/parallel_plan.h"
#include "layout/workload_check.h"
#include "orchestrator/job/job_option.h"
#include "orchestrator/plan/cost.h"

enum { BATCH_GUESS = 1, SEQ_GUESS = 128, MICROS_MAX = 4096 };

struct fit {
    const struct job *job;
    const struct run_record *book;
    struct arena *arena;
    bool has_model;
    bool sets_micro, sets_recompute; /* the command line leaves it to tp-run */
    struct workload asked;           /* 0: not known */
    struct model model;
    struct parallel_plan plan; /* of --plan */
    struct tensor_kinds kinds; /* of the model's tensors */
    struct cost_work work;     /* as asked, with guesses for what is not known */
    struct cost_model cost;
};

/* ---- opening ---- */

/* tp-train's --plan, when the command has one: names and cuts of other models. */
static tp_status read_plan(struct fit *f, struct tp_err *err)
{
    const char *given = job_option(f->job, "--plan");
    char path[PATH_MAX];
    tp_status st;

    if (!given || !f->job->is_tp_train)
        return TP_OK;
    snprintf(path, sizeof path, "%.2000s%s%.2000s", given[0] == '/' ? "" : f->job->dir,
             given[0] == '/' ? "" : "/", given);
    st = parallel_plan_read(&f->plan, path, f->arena, err);
    f->model.plan = &f->plan;
    return st;
}

static tp_status read_model(struct fit *f, struct tp_err *err)
{
    const char *given = f->job->layouts.model;
    tp_status st;

    if (!given)
        return TP_OK;
    st = model_config_read(&f->model, given, f->arena, err);
    if (st == TP_OK)
        st = read_plan(f, err);
    if (st == TP_OK)
        st = model_kinds(&f->kinds, &f->model, f->arena, err);
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
            run_config_parse(&samples[n].way, f->book->measured[i].way, &ignored) == TP_OK)
            n++;
    }
    cost_fit(&f->cost, &f->work, samples, n);
}

/* What the command and the job file say of a step. */
static tp_status read_work(struct fit *f, struct tp_err *err)
{
    const struct job *j = f->job;
    const char *recompute = job_option(j, "--recompute");
    const char *same_bits = j->is_tp_train ? job_option(j, "--same-bits") : NULL;
    long bits = same_bits ? strtol(same_bits, NULL, 10) : 0;

    f->asked = (struct workload){ .seq_length = j->layouts.seq,
                                  .global_batch_size = j->layouts.batch,
                                  .micro_batch_size = j->layouts.micro,
                                  .same_bits = bits == (int)bits ? (int)bits : INT_MAX };
    if (j->layouts.dtype && !dtype_parse(&f->asked.dtype, j->layouts.dtype))
        return tp_fail(err, TP_E_USAGE, "%s: layouts.dtype (--dtype) is fp32 or bf16, not '%.60s'",
                       j->path, j->layouts.dtype);
    if (recompute && !recompute_parse(&f->asked.recompute, recompute) && j->is_tp_train)
        return tp_fail(err, TP_E_USAGE, "%s: --recompute is none, selective or full, not '%.60s'",
                       j->path, recompute);
    f->sets_micro = j->is_tp_train && f->asked.global_batch_size && !f->asked.micro_batch_size &&
                    !f->asked.same_bits;
    f->sets_recompute = j->is_tp_train && !recompute;
    f->work = (struct cost_work){ .model = &f->model, .asked = f->asked };
    if (!f->asked.global_batch_size)
        f->work.asked.global_batch_size = BATCH_GUESS;
    if (!f->asked.seq_length)
        f->work.asked.seq_length = SEQ_GUESS;
    return TP_OK;
}

/* What no layout can mend, of tp-train. */
static tp_status check_run(const struct fit *f, struct tp_err *err)
{
    bool open = job_option_is_open(f->job, "--batch") || job_option_is_open(f->job, "--seq");
    const struct workload *w = open ? &f->work.asked : &f->asked;

    if (!f->job->is_tp_train || !f->has_model || !workload_check_run(w, &f->model, err))
        return TP_OK;
    return tp_fail_in(err, "%s", f->job->path);
}

tp_status fit_open(struct fit **out, const struct job *job, const struct run_record *book,
                   struct arena *arena, struct tp_err *err)
{
    struct fit *f = arena_alloc(arena, sizeof *f);
    tp_status st;

    if (!f)
        return tp_fail(err, TP_E_NOMEM, "no memory to plan");
    *f = (struct fit){ .job = job, .book = book, .arena = arena };
    if ((st = read_work(f, err)) || (st = read_model(f, err)))
        return st;
    if ((st = check_run(f, err)))
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

__attribute__((format(printf, 3, 4))) static bool refuse(struct fit *f, struct plan_candidate *c,
                                                         const char *fmt, ...)
{
    char text[TP_ERR_MAX];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    c->why = arena_strdup(f->arena, text);
    c->why = c->why ? c->why : "no memory to say why";
    return false;
}

static bool check_ranks(struct fit *f, struct plan_candidate *c, int max_ranks)
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

static bool check_axes(struct fit *f, struct plan_candidate *c)
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

/* The model and the batch, whatever the microbatches. */
static bool check_shape(struct fit *f, struct plan_candidate *c)
{
    const struct spec *p = &c->way.spec;
    const struct model *m = f->has_model ? &f->model : NULL;
    struct tp_err why = { 0 };

    if ((m && layout_check(p, m->layers, &f->kinds, &why)) ||
        workload_check_mesh(&f->asked, p, m, &why))
        return refuse(f, c, "%s", why.msg);
    return true;
}

bool fit_is_possible(struct fit *f, const struct spec *s)
{
    struct plan_candidate c = { .way.spec = *s, .ranks = spec_world(s), .why = "" };

    return check_shape(f, &c);
}

static bool check_micro(struct fit *f, struct plan_candidate *c)
{
    const struct workload w = run_config_work(&f->asked, &c->way);
    struct tp_err why = { 0 };

    return !workload_check_micro(&w, &c->way.spec, &why) || refuse(f, c, "%s", why.msg);
}

/* ---- how well ---- */

static double seconds_of(const struct fit *f, const struct run_config *w, bool *measured)
{
    char text[RUN_CONFIG_TEXT_MAX];

    *measured = false;
    run_config_format(text, w);
    for (int i = 0; f->book && i < f->book->n_measured; i++)
        if (strcmp(f->book->measured[i].way, text) == 0) {
            *measured = true;
            return f->book->measured[i].seconds;
        }
    return f->has_model ? cost_predict(&f->cost, &f->work, w) : 0;
}

static int64_t memory_of(const struct fit *f, const struct run_config *way)
{
    struct workload w = run_config_work(&f->work.asked, way);

    if (!f->has_model)
        return 0;
    if (!workload_micro(&w, &way->spec)) /* the batch is a guess */
        w.micro_batch_size = 1;
    return memory_estimate(&f->model, &way->spec, &w, true).total;
}

/* One pair of microbatch and recomputation: takes c's place in *best when it fits and is faster
 * (the first of equals stays). */
static void try_way(struct fit *f, struct plan_candidate *best, const struct plan_candidate *c,
                    int64_t *least)
{
    struct plan_candidate t = *c;

    t.memory = memory_of(f, &t.way);
    *least = t.memory < *least ? t.memory : *least;
    if (f->job->layouts.memory && t.memory > f->job->layouts.memory)
        return;
    t.seconds = seconds_of(f, &t.way, &t.measured);
    t.legal = true;
    if (!best->legal || t.seconds < best->seconds)
        *best = t;
}

/* Every microbatch that divides a rank's share, the largest first; what the command asks for where
 * it asks. */
static void try_micros(struct fit *f, struct plan_candidate *best, struct plan_candidate *c,
                       enum recompute again, int64_t *least)
{
    int64_t share = f->asked.global_batch_size / c->way.spec.dp;

    for (int64_t n = 1; n <= (f->sets_micro ? share : 1) && n <= MICROS_MAX; n++) {
        struct plan_candidate t = *c;

        if (n > 1 && share % n)
            continue;
        t.way.micro = n > 1 ? share / n : 0;
        t.way.recompute = again;
        t.why = "";
        if (check_micro(f, &t))
            try_way(f, best, &t, least);
        else if (!c->why[0])
            c->why = t.why;
    }
}

void fit_check(struct fit *f, struct plan_candidate *c, int max_ranks)
{
    int most = f->sets_recompute ? RECOMPUTE_FULL : RECOMPUTE_NONE;
    char need[SIZE_TEXT_MAX], limit[SIZE_TEXT_MAX];
    struct plan_candidate best = { 0 };
    int64_t least = INT64_MAX;

    if (!check_ranks(f, c, max_ranks) || !check_axes(f, c) || !check_shape(f, c))
        return;
    for (int again = RECOMPUTE_NONE; again <= most; again++)
        try_micros(f, &best, c, (enum recompute)again, &least);
    if (best.legal) {
        *c = best;
    } else if (least < INT64_MAX) {
        c->memory = least;
        refuse(f, c, "a rank needs %s%s, layouts.memory is %s", size_format(need, least),
               f->sets_micro || f->sets_recompute ? " at the least" : "",
               size_format(limit, f->job->layouts.memory));
    }
}
