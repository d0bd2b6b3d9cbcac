/* orchestrator/plan/fit.c - see orchestrator/plan/fit.h. */
#include "orchestrator/plan/fit.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/size.h"
#include "core/text.h"
#include "layout/layout.h"
#include "layout/layout_check.h"
#include "layout/model_config.h"
#include "layout/model_tensors.h"
#include "layout/parallel_plan.h"
#include "layout/workload_check.h"
#include "orchestrator/job/job_backend.h"
#include "orchestrator/job/job_option.h"
#include "orchestrator/plan/cost.h"
#include "storage/location.h"
#include "storage/object.h"

enum { BATCH_GUESS = 1, SEQ_GUESS = 128, MICROS_MAX = 4096 };

struct fit {
    const struct job *job;
    const struct job_findings *findings; /* NULL: none */
    struct arena *arena;
    bool has_model;
    bool on_gpus;                    /* memory and speed are those of GPUs */
    bool sets_micro, sets_recompute; /* the command leaves these to tp-run */
    struct workload asked;           /* 0: not known */
    struct model model;
    struct parallel_plan plan; /* of --plan */
    struct tensor_kinds kinds; /* of the model's tensors */
    struct memory_model memory;
    struct cost_work work; /* as asked, with guesses for unknown values */
    struct cost_model cost;
};

/* ---- opening ---- */

/* Read tp-train's --plan, if the command has one: the names and cuts of another model family. */
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

/* Read the config.json of a model on a web server or in a store, once. */
static tp_status read_remote_config(struct fit *f, const char *given, struct tp_err *err)
{
    struct job_config *config = f->job->layouts.config;
    char path[PATH_MAX], file[PATH_MAX];
    tp_status st;

    TP_TRY(location_clean(path, given, err));
    if (text_ends_with(path, ".json"))
        snprintf(file, sizeof file, "%s", path);
    else
        TP_TRY(file_join(file, path, "config.json", err));
    if (!config->text)
        TP_TRY(object_read_all(&config->text, &config->size, file, MODEL_CONFIG_BYTES_MAX,
                               config->arena, err));
    st = model_config_parse(&f->model, config->text, config->size, file, f->arena, err);
done:
    return st;
}

static tp_status read_model(struct fit *f, struct tp_err *err)
{
    const char *given = f->job->layouts.model;
    tp_status st;

    if (!given)
        return TP_OK;
    st = location_is_remote(given) ? read_remote_config(f, given, err)
                                   : model_config_read(&f->model, given, f->arena, err);
    if (st == TP_OK)
        st = read_plan(f, err);
    if (st == TP_OK)
        st = model_kinds(&f->kinds, &f->model, f->arena, err);
    if (!st)
        st = memory_model_make(&f->memory, &f->model, f->arena, err);
    f->has_model = st == TP_OK;
    return st;
}

static void fit_to_times(struct fit *f)
{
    const struct step_times *times = f->findings ? &f->findings->times : NULL;
    struct cost_sample samples[COST_SAMPLES_MAX];
    int n = 0;

    if (!f->has_model)
        return;
    for (int i = 0; times && i < times->n && n < COST_SAMPLES_MAX; i++) {
        struct tp_err ignored;

        samples[n].seconds = times->entry[i].seconds;
        if (samples[n].seconds > 0 &&
            run_config_parse(&samples[n].config, times->entry[i].config, &ignored) == TP_OK)
            n++;
    }
    cost_fit(&f->cost, &f->work, samples, n);
}

/* With --device auto the ranks decide. Then tp-train compares --mem with the memory of CPUs, which
 * it may use. */
static bool is_on_gpus(const struct job *j, const struct job_findings *findings)
{
    return job_needs_gpus(j) ||
           (job_uses_gpus(j) && findings && findings->gpus.bytes > 0 && !job_option(j, "--mem"));
}

/* A backend that finds its nodes itself has several machines; the nodes of others are parts of
 * one. */
static enum cost_machine machine_of(const struct fit *f)
{
    if (!f->on_gpus)
        return COST_CPUS;
    return f->job->backend && f->job->backend->finds_nodes ? COST_GPU_MACHINES : COST_GPUS;
}

/* The number of an option of tp-train, which checks it; 0 without it. */
static long number_option(const struct job *j, const char *name)
{
    const char *text = j->is_tp_train ? job_option(j, name) : NULL;

    return text ? strtol(text, NULL, 10) : 0;
}

/* Read what the command and the job file say about a step. */
static tp_status read_work(struct fit *f, struct tp_err *err)
{
    const struct job *j = f->job;
    const char *recompute = job_option(j, "--recompute");
    const long bits = number_option(j, "--same-bits"), threads = number_option(j, "--threads");

    f->asked = (struct workload){ .seq_length = j->layouts.seq,
                                  .global_batch_size = j->layouts.batch,
                                  .micro_batch_size = j->layouts.micro,
                                  .threads = threads == (int)threads ? (int)threads : INT_MAX,
                                  .same_bits = bits == (int)bits ? (int)bits : INT_MAX };
    if (j->layouts.dtype && !dtype_parse(&f->asked.dtype, j->layouts.dtype))
        return tp_fail(err, TP_E_USAGE,
                       "%s: layouts.dtype (--dtype) must be fp32 or bf16, not '%.60s'", j->path,
                       j->layouts.dtype);
    if (recompute && !recompute_parse(&f->asked.recompute, recompute) && j->is_tp_train)
        return tp_fail(err, TP_E_USAGE,
                       "%s: --recompute must be none, selective or full, not '%.60s'", j->path,
                       recompute);
    f->sets_micro = j->is_tp_train && f->asked.global_batch_size && !f->asked.micro_batch_size &&
                    !f->asked.same_bits;
    f->sets_recompute = j->is_tp_train && !recompute;
    f->work = (struct cost_work){ .machine = machine_of(f), .model = &f->model, .asked = f->asked };
    if (!f->asked.global_batch_size)
        f->work.asked.global_batch_size = BATCH_GUESS;
    if (!f->asked.seq_length)
        f->work.asked.seq_length = SEQ_GUESS;
    return TP_OK;
}

/* Refuse what tp-train would refuse at every layout. */
static tp_status check_run(const struct fit *f, struct tp_err *err)
{
    bool open = job_option_is_open(f->job, "--batch") || job_option_is_open(f->job, "--seq");
    const struct workload *w = open ? &f->work.asked : &f->asked;

    if (!f->job->is_tp_train || !f->has_model || !workload_check_run(w, &f->model, err))
        return TP_OK;
    return tp_fail_in(err, "%s", f->job->path);
}

tp_status fit_open(struct fit **out, const struct job *job, const struct job_findings *findings,
                   struct arena *arena, struct tp_err *err)
{
    struct fit *f = arena_alloc(arena, sizeof *f);
    tp_status st;

    if (!f)
        return tp_fail(err, TP_E_NOMEM, "no memory to plan");
    *f = (struct fit){
        .job = job, .findings = findings, .arena = arena, .on_gpus = is_on_gpus(job, findings)
    };
    if ((st = read_work(f, err)) || (st = read_model(f, err)))
        return st;
    if ((st = check_run(f, err)))
        return st;
    fit_to_times(f);
    *out = f;
    return TP_OK;
}

const struct job *fit_job(const struct fit *f)
{
    return f->job;
}

int fit_experts(const struct fit *f)
{
    return f->has_model ? f->model.experts : 0;
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

/* ---- why a layout is refused ---- */

__attribute__((format(printf, 3, 4))) static bool refuse(struct fit *f, struct plan_candidate *c,
                                                         const char *fmt, ...)
{
    char text[TP_ERR_MAX];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    c->why = arena_strdup(f->arena, text);
    c->why = c->why ? c->why : "no memory for the reason";
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
    const struct spec *p = &c->config.spec;
    const struct {
        const char *name;
        bool used;
    } axes[] = { { "tp", p->tp > 1 }, { "pp", p->pp > 1 },       { "vpp", p->vpp > 1 },
                 { "cp", p->cp > 1 }, { "dp", p->dp > 1 },       { "sp", p->sp },
                 { "ep", p->ep > 1 }, { "zero1", p->zero == 1 }, { "zero3", p->zero == 3 } };

    for (size_t i = 0; f->job->layouts.n_allow == 0 && i < sizeof axes / sizeof axes[0]; i++)
        if (axes[i].used && !job_has_axis(f->job, axes[i].name))
            return refuse(f, c, "uses %s, which layouts.axes does not name", axes[i].name);
    return true;
}

/* Check against the model and the batch, for any microbatch. */
static bool check_shape(struct fit *f, struct plan_candidate *c)
{
    const struct spec *p = &c->config.spec;
    const struct model *m = f->has_model ? &f->model : NULL;
    struct tp_err why = { 0 };

    if ((m && layout_check(p, m->layers, &f->kinds, &why)) ||
        workload_check_mesh(&f->asked, p, m, &why))
        return refuse(f, c, "%s", why.msg);
    return true;
}

bool fit_is_possible(struct fit *f, const struct spec *s)
{
    struct plan_candidate c = { .config.spec = *s, .ranks = spec_world(s), .why = "" };

    return check_shape(f, &c);
}

static bool check_micro(struct fit *f, struct plan_candidate *c)
{
    const struct workload w = run_config_work(&f->asked, &c->config);
    struct tp_err why = { 0 };

    return !workload_check_micro(&w, &c->config.spec, &why) || refuse(f, c, "%s", why.msg);
}

/* ---- how fast ---- */

static double seconds_of(const struct fit *f, const struct run_config *c, bool *measured)
{
    double seconds = f->findings ? step_times_get(&f->findings->times, c) : 0;

    *measured = seconds > 0;
    if (*measured)
        return seconds;
    return f->has_model ? cost_predict(&f->cost, &f->work, c) : 0;
}

/* ---- memory ---- */

static void count_memory(struct fit *f, struct plan_candidate *c)
{
    struct workload w = run_config_work(&f->work.asked, &c->config);
    const struct spec *s = &c->config.spec;

    if (!f->has_model)
        return;
    if (!workload_micro(&w, s)) /* the batch is only a guess */
        w.micro_batch_size = 1;
    if (f->on_gpus) {
        c->gpu = gpu_memory_estimate(&f->memory, s, &w);
        c->memory = c->gpu.total;
    } else {
        c->memory = memory_estimate(&f->memory, s, &w, true).total;
    }
}

/* What the ranks have reported about their GPUs. */
static struct job_findings_gpus gpus_of(const struct fit *f)
{
    return f->on_gpus && f->findings ? f->findings->gpus : (struct job_findings_gpus){ 0 };
}

static bool fits(const struct fit *f, const struct plan_candidate *c)
{
    const struct job_findings_gpus gpus = gpus_of(f);
    int64_t limit = f->job->layouts.memory;

    if (limit ? c->memory > limit : gpus.bytes && c->gpu.tensors + c->gpu.scratch > gpus.bytes)
        return false;
    return c->measured || !gpus.refused || c->memory < gpus.refused;
}

/* What CUDA and NCCL take is an estimate, which does not keep a job from its only layout. One that
 * has trained has shown how much it is too high. */
static bool is_tight(const struct fit *f, const struct plan_candidate *c)
{
    const struct job_findings_gpus gpus = gpus_of(f);

    return !f->job->layouts.memory && gpus.bytes && c->memory - gpus.overstated > gpus.bytes;
}

/* Of two pairs of microbatch and recomputation. */
static bool is_better(const struct plan_candidate *a, const struct plan_candidate *b)
{
    if (a->is_tight != b->is_tight)
        return b->is_tight;
    return a->is_tight ? a->memory < b->memory : a->seconds < b->seconds;
}

/* No pair of microbatch and recomputation fits; `least` is the lowest memory of all. */
static void refuse_memory(struct fit *f, struct plan_candidate *c, int64_t least)
{
    const struct job_findings_gpus gpus = gpus_of(f);
    const char *lowest = f->sets_micro || f->sets_recompute ? " at the least" : "";
    const char *about = f->on_gpus ? "about " : "", *gpu = f->on_gpus ? " of GPU memory" : "";
    char need[SIZE_TEXT_MAX], limit[SIZE_TEXT_MAX];

    c->memory = least;
    size_format(need, least);
    if (f->job->layouts.memory && least > f->job->layouts.memory)
        refuse(f, c, "a rank needs %s%s%s%s, layouts.memory is %s", about, need, gpu, lowest,
               size_format(limit, f->job->layouts.memory));
    else if (!f->job->layouts.memory && gpus.bytes && least > gpus.bytes)
        refuse(f, c, "a rank needs about %s of GPU memory%s, its GPU has %s", need, lowest,
               size_format(limit, gpus.bytes));
    else
        refuse(
            f, c,
            "a rank needs about %s of GPU memory%s, and a layout that needs %s did not fit its GPU",
            need, lowest, size_format(limit, gpus.refused));
}

/* Try one pair of microbatch and recomputation. It replaces *best if it fits and is better. *least
 * becomes the lowest memory of all pairs. */
static void try_config(struct fit *f, struct plan_candidate *best, const struct plan_candidate *c,
                       int64_t *least)
{
    struct plan_candidate t = *c;

    count_memory(f, &t);
    *least = t.memory < *least ? t.memory : *least;
    t.seconds = seconds_of(f, &t.config, &t.measured);
    if (!fits(f, &t))
        return;
    t.legal = true;
    t.is_tight = is_tight(f, &t);
    if (!best->legal || is_better(&t, best))
        *best = t;
}

/* Try every microbatch that divides a dp rank's share of the batch, the largest first; or only the
 * one that the command asks for. */
static void try_micros(struct fit *f, struct plan_candidate *best, struct plan_candidate *c,
                       enum recompute recompute, int64_t *least)
{
    int64_t share = f->asked.global_batch_size / c->config.spec.dp;

    for (int64_t n = 1; n <= (f->sets_micro ? share : 1) && n <= MICROS_MAX; n++) {
        struct plan_candidate t = *c;

        if (n > 1 && share % n)
            continue;
        t.config.micro = n > 1 ? share / n : 0;
        t.config.recompute = recompute;
        t.why = "";
        if (check_micro(f, &t))
            try_config(f, best, &t, least);
        else if (!c->why[0])
            c->why = t.why;
    }
}

void fit_check(struct fit *f, struct plan_candidate *c, int max_ranks)
{
    int most = f->sets_recompute ? RECOMPUTE_FULL : RECOMPUTE_NONE;
    struct plan_candidate best = { 0 };
    int64_t least = INT64_MAX;

    c->on_gpu = f->on_gpus;
    if (!check_ranks(f, c, max_ranks) || !check_axes(f, c) || !check_shape(f, c))
        return;
    for (int r = RECOMPUTE_NONE; r <= most; r++)
        try_micros(f, &best, c, (enum recompute)r, &least);
    if (best.legal)
        *c = best;
    else if (least < INT64_MAX)
        refuse_memory(f, c, least);
}
