/* orchestrator/scale.c - see orchestrator/scale.h. */
#include "orchestrator/scale.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/size.h"
#include "layout/layout.h"
#include "layout/memory.h"

enum { TERMS = 4, CONFIG_MAX = 16 << 20, CANDIDATES_MAX = 4096 };

/* Seconds for a flop, a byte over tp, a byte over dp, a collective: the guess before measuring. */
static const double GUESS[TERMS] = { 1 / 50e9, 1 / 2e9, 1 / 2e9, 20e-6 };

/* How far the guess holds against measurements: relative, as if it were measured this well. */
static const double GUESS_WEIGHT = 0.05;

struct scale {
    const struct job *job;
    const struct book *book;
    struct arena *arena;
    bool has_model;
    struct model model;
    struct tensor *tensors;
    int n_tensors;
    enum dtype dtype;
    int64_t batch, micro, seq; /* 0: not known */
    double weight[TERMS];
    struct candidate *list;
    int n;
};

static tp_status read_model(struct scale *s, struct tp_err *err)
{
    char path[PATH_MAX];
    char *text;
    size_t size;
    tp_status st;

    if (!s->job->layouts.model)
        return TP_OK;
    snprintf(path, sizeof path, "%s%s", s->job->layouts.model,
             file_is_dir(s->job->layouts.model) ? "/config.json" : "");
    st = file_read_all(&text, &size, path, CONFIG_MAX, s->arena, err);
    if (st == TP_OK)
        st = model_parse(&s->model, text, size, path, s->arena, err);
    s->dtype = s->job->layouts.dtype && strcmp(s->job->layouts.dtype, "bf16") == 0 ? DTYPE_BF16
                                                                                   : DTYPE_F32;
    if (st == TP_OK)
        st = model_params(&s->tensors, &s->n_tensors, &s->model, s->dtype, s->arena, err);
    s->has_model = st == TP_OK;
    return st;
}

/* The sequences of a microbatch: as the job says, or all that a dp rank has. */
static int64_t micro_of(const struct scale *s, const struct spec *p)
{
    if (s->micro)
        return s->micro;
    return s->batch ? (s->batch + p->dp - 1) / p->dp : 1;
}

/* What a step of this layout is made of. */
static void terms(double x[TERMS], const struct scale *s, const struct spec *p)
{
    const struct model *m = &s->model;
    double tokens = (double)(s->batch ? s->batch : 1) * (double)(s->seq ? s->seq : 128);
    double rows = tokens / p->dp, params = (double)model_matmul_params(m);
    double microbatches =
        s->micro && s->batch ? ceil((double)s->batch / p->dp / (double)s->micro) : 1;

    x[0] = model_step_flops(m, (int64_t)tokens, s->seq ? s->seq : 128) / spec_world(p);
    x[1] = p->tp > 1 ? m->layers * 4.0 * rows * (double)m->hidden * 4 * 2 * (p->tp - 1) / p->tp : 0;
    x[2] = p->dp > 1 ? params / p->tp / p->pp * 4 * 2 * (p->dp - 1) / p->dp : 0;
    x[3] = (p->tp > 1 ? m->layers * 4 * microbatches : 0) + (p->dp > 1 ? 8 : 0) + 2;
}

/* Solve the symmetric system a w = b in place (Gauss; it is positive definite). */
static void solve(double a[TERMS][TERMS], double b[TERMS], double w[TERMS])
{
    for (int i = 0; i < TERMS; i++)
        for (int k = i + 1; k < TERMS; k++) {
            double f = a[k][i] / a[i][i];

            for (int j = i; j < TERMS; j++)
                a[k][j] -= f * a[i][j];
            b[k] -= f * b[i];
        }
    for (int i = TERMS - 1; i >= 0; i--) {
        w[i] = b[i];
        for (int j = i + 1; j < TERMS; j++)
            w[i] -= a[i][j] * w[j];
        w[i] /= a[i][i];
    }
}

/* Weights relative to the guess, v = w / guess, near one common factor: minimise
 * sum ((v.x - t) / t)^2 + GUESS_WEIGHT |v - f|^2 with f the factor that fits best alone. */
static void fit(struct scale *s)
{
    double a[TERMS][TERMS] = { { 0 } }, b[TERMS] = { 0 }, v[TERMS], top = 0, bottom = 0, factor = 1;
    double x[BOOK_MEASURED_MAX][TERMS], t[BOOK_MEASURED_MAX];
    int n = 0;

    memcpy(s->weight, GUESS, sizeof GUESS);
    for (int i = 0; s->book && s->has_model && i < s->book->n_measured; i++) {
        struct tp_err ignored;
        struct spec p;

        if (spec_parse(&p, s->book->measured[i].layout, &ignored) ||
            s->book->measured[i].seconds <= 0)
            continue;
        t[n] = s->book->measured[i].seconds;
        terms(x[n], s, &p);
        for (int k = 0; k < TERMS; k++)
            x[n][k] *= GUESS[k] / t[n];
        for (int k = 0; k < TERMS; k++)
            bottom += x[n][k];
        top += 1;
        n++;
    }
    if (n == 0)
        return;
    factor = bottom > 0 ? top / bottom : 1;
    for (int k = 0; k < TERMS; k++) {
        a[k][k] = GUESS_WEIGHT;
        b[k] = GUESS_WEIGHT * factor;
    }
    for (int i = 0; i < n; i++)
        for (int k = 0; k < TERMS; k++) {
            b[k] += x[i][k];
            for (int j = 0; j < TERMS; j++)
                a[k][j] += x[i][k] * x[i][j];
        }
    solve(a, b, v);
    for (int k = 0; k < TERMS; k++)
        s->weight[k] = GUESS[k] * (v[k] > 0 ? v[k] : 0);
}

static double predict(const struct scale *s, struct candidate *c)
{
    char text[SPEC_TEXT_MAX];
    double x[TERMS], t = 0;

    spec_format(text, &c->spec);
    for (int i = 0; s->book && i < s->book->n_measured; i++)
        if (strcmp(s->book->measured[i].layout, text) == 0) {
            c->measured = true;
            return s->book->measured[i].seconds;
        }
    if (!s->has_model)
        return 0;
    terms(x, s, &c->spec);
    for (int k = 0; k < TERMS; k++)
        t += s->weight[k] * x[k];
    return t;
}

static bool axis_allowed(const struct job *job, const char *axis)
{
    for (int i = 0; i < job->layouts.axes.n; i++)
        if (strcmp(job->layouts.axes.word[i], axis) == 0)
            return true;
    return false;
}

static bool refuse(struct candidate *c, const char *why)
{
    snprintf(c->why, sizeof c->why, "%.*s", (int)sizeof c->why - 1, why);
    return false;
}

static bool batch_divides(const struct scale *s, struct candidate *c)
{
    int64_t micro = micro_of(s, &c->spec);

    if (s->batch && s->batch % (c->spec.dp * micro) != 0) {
        snprintf(c->why, sizeof c->why,
                 "the global batch of %lld does not divide by dp%d x microbatches of %lld",
                 (long long)s->batch, c->spec.dp, (long long)micro);
        return false;
    }
    return true;
}

static bool fits_memory(const struct scale *s, struct candidate *c)
{
    char need[SIZE_TEXT_MAX], limit[SIZE_TEXT_MAX];
    int64_t micro = micro_of(s, &c->spec);
    const struct memory_run run = { .dtype = s->dtype,
                                    .seq = s->seq ? s->seq : 128,
                                    .micro = micro,
                                    .micros = s->batch / c->spec.dp / micro,
                                    .flags = MEMORY_SAVES };
    struct memory_need m = memory_estimate(&s->model, &c->spec, &run);

    c->memory = m.total;
    if (!s->job->layouts.memory || m.total <= s->job->layouts.memory)
        return true;
    snprintf(c->why, sizeof c->why, "a rank needs %s, layouts.memory is %s",
             size_format(need, m.total), size_format(limit, s->job->layouts.memory));
    return false;
}

static bool check(const struct scale *s, struct candidate *c, int max_ranks)
{
    struct tp_err why = { 0 };
    struct layout layout;

    if (c->ranks > max_ranks) {
        snprintf(c->why, sizeof c->why, "needs %d ranks, there are %d", c->ranks, max_ranks);
        return false;
    }
    if (c->ranks < s->job->layouts.min_ranks)
        return refuse(c, "fewer ranks than layouts.min_ranks");
    if (s->job->layouts.max_ranks && c->ranks > s->job->layouts.max_ranks)
        return refuse(c, "more ranks than layouts.max_ranks");
    if ((c->spec.pp > 1 && !axis_allowed(s->job, "pp")) ||
        (c->spec.cp > 1 && !axis_allowed(s->job, "cp")) ||
        (c->spec.dp > 1 && !axis_allowed(s->job, "dp")) ||
        (c->spec.tp > 1 && !axis_allowed(s->job, "tp")))
        return refuse(c, "uses an axis that layouts.axes does not name");
    if (!batch_divides(s, c))
        return false;
    if (!s->has_model)
        return true;
    if (layout_make(&layout, &c->spec, s->model.layers, s->tensors, s->n_tensors, s->arena, &why))
        return refuse(c, why.msg);
    return fits_memory(s, c);
}

static void add(struct scale *s, const struct spec *p, int max_ranks)
{
    struct candidate *c = &s->list[s->n];

    if (s->n == CANDIDATES_MAX)
        return;
    *c = (struct candidate){ .spec = *p, .ranks = spec_world(p) };
    c->legal = check(s, c, max_ranks);
    c->seconds = c->legal ? predict(s, c) : 0;
    s->n++;
}

static void enumerate(struct scale *s, int max_ranks)
{
    bool tp = axis_allowed(s->job, "tp") && (s->has_model), dp = axis_allowed(s->job, "dp");
    bool pp = axis_allowed(s->job, "pp") && s->has_model;
    bool cp = axis_allowed(s->job, "cp") && s->has_model;
    struct spec p = spec_default();

    for (p.tp = 1; p.tp <= (tp ? max_ranks : 1); p.tp++)
        for (p.pp = 1; p.pp <= (pp ? max_ranks / p.tp : 1); p.pp++)
            for (p.cp = 1; p.cp <= (cp ? max_ranks / p.tp / p.pp : 1); p.cp++)
                for (p.dp = 1; p.dp <= (dp ? max_ranks / p.tp / p.pp / p.cp : 1); p.dp++)
                    add(s, &p, max_ranks);
}

/* Steps of 2 %, so that what is about equal compares equal (and the order stays one). */
static double grade(const struct candidate *c)
{
    return c->seconds > 0 ? floor(log(c->seconds) / 0.02) : 0;
}

static int by_merit(const void *pa, const void *pb)
{
    const struct candidate *a = pa, *b = pb;

    if (a->legal != b->legal)
        return a->legal ? -1 : 1;
    if (a->legal && grade(a) != grade(b))
        return grade(a) < grade(b) ? -1 : 1;
    if (a->seconds == 0 && a->ranks != b->ranks)
        return b->ranks - a->ranks; /* cannot be predicted: more ranks are quicker */
    if (a->ranks != b->ranks)
        return a->ranks - b->ranks;
    return a->spec.tp - b->spec.tp;
}

tp_status scale_candidates(struct candidate **out, int *n, const struct job *job,
                           const struct book *book, int max_ranks, struct arena *arena,
                           struct tp_err *err)
{
    struct scale s = { .job = job,
                       .book = book,
                       .arena = arena,
                       .batch = job->layouts.batch,
                       .micro = job->layouts.micro,
                       .seq = job->layouts.seq };
    tp_status st = read_model(&s, err);

    if (st)
        return st;
    s.list = arena_array(arena, CANDIDATES_MAX, sizeof *s.list);
    if (!s.list)
        return tp_fail(err, TP_E_NOMEM, "no memory to plan");
    fit(&s);
    for (int i = 0; i < job->layouts.n_allow; i++)
        add(&s, &job->layouts.allow[i], max_ranks);
    if (job->layouts.n_allow == 0) {
        enumerate(&s, max_ranks);
        qsort(s.list, (size_t)s.n, sizeof *s.list, by_merit);
    }
    *out = s.list;
    *n = s.n;
    return TP_OK;
}

tp_status scale_pick(struct candidate *out, const struct candidate *c, int n, const char *text,
                     struct tp_err *err)
{
    bool is_count = text[0] && strspn(text, "0123456789") == strlen(text);
    long most = is_count ? strtol(text, NULL, 10) : INT_MAX;
    struct spec wanted;
    char found[SPEC_TEXT_MAX];
    tp_status st;

    if (text[0] && !is_count && (st = spec_parse(&wanted, text, err)))
        return st;
    for (int i = 0; i < n; i++) {
        if (text[0] && !is_count &&
            (!spec_matches(&wanted, &c[i].spec) || spec_world(&wanted) != c[i].ranks))
            continue;
        if (c[i].legal && c[i].ranks <= most) {
            *out = c[i];
            return TP_OK;
        }
        if (text[0] && !is_count)
            return tp_fail(err, TP_E_LAYOUT, "%s: %s", spec_format(found, &c[i].spec), c[i].why);
    }
    return tp_fail(err, TP_E_LAYOUT, "no layout%s%s is among those allowed for the ranks there are",
                   text[0] ? " " : "", text);
}
