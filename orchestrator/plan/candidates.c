/* orchestrator/plan/candidates.c - see orchestrator/plan/candidates.h. */
#include "orchestrator/plan/candidates.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CANDIDATES_MAX = 1 << 16, FIRST_CAPACITY = 256 };

struct candidates {
    struct fit *fit;
    struct arena *arena;
    int max_ranks, n, capacity;
    struct plan_candidate *c;
    tp_status st;
};

static bool allowed(const struct candidates *l, const char *axis)
{
    return job_has_axis(fit_job(l->fit), axis);
}

static void add(struct candidates *l, const struct spec *p)
{
    struct plan_candidate *c;

    if (l->st)
        return;
    if (l->n == l->capacity) {
        int more = l->capacity ? 2 * l->capacity : FIRST_CAPACITY;
        struct plan_candidate *grown =
            more <= CANDIDATES_MAX ? arena_array(l->arena, (size_t)more, sizeof *grown) : NULL;

        if (!grown) {
            l->st = more > CANDIDATES_MAX ? TP_E_USAGE : TP_E_NOMEM;
            return;
        }
        if (l->n)
            memcpy(grown, l->c, (size_t)l->n * sizeof *grown);
        l->c = grown;
        l->capacity = more;
    }
    c = &l->c[l->n++];
    *c = (struct plan_candidate){ .config.spec = *p, .ranks = spec_world(p), .why = "" };
    fit_check(l->fit, c, l->max_ranks);
}

/* ---- enumerating ---- */

/* Add a mesh with every ep that is a power of two. */
static void add_expert_parallel(struct candidates *l, const struct spec *mesh)
{
    int experts = fit_experts(l->fit), lanes = mesh->dp * mesh->cp;
    struct spec p = *mesh;

    for (p.ep = 2; allowed(l, "ep") && p.ep <= experts && experts % p.ep == 0; p.ep *= 2)
        if (lanes % p.ep == 0)
            add(l, &p);
}

/* Add a mesh with every vpp, sp and ZeRO; these do not change the number of ranks. */
static void add_variants(struct candidates *l, const struct spec *mesh)
{
    static const int zeros[] = { 0, 1, 3 };
    int64_t layers = fit_layers(l->fit);
    struct spec p = *mesh;

    for (p.vpp = 1; p.vpp <= 4; p.vpp *= 2) {
        if (p.vpp > 1 && (p.pp == 1 || !allowed(l, "vpp") || layers % ((int64_t)p.pp * p.vpp)))
            break;
        for (int sp = 0; sp <= (p.tp > 1 && allowed(l, "sp") ? 1 : 0); sp++)
            for (int z = 0; z < 3; z++) {
                p.sp = sp;
                p.zero = zeros[z];
                if (p.zero && (p.dp == 1 || !allowed(l, p.zero == 1 ? "zero1" : "zero3")))
                    continue;
                add(l, &p);
                add_expert_parallel(l, &p);
            }
    }
}

/* Write the possible degrees 1 .. most of one axis to out, and add the impossible ones as refused
 * candidates. Returns the number in out. */
static int degrees(struct candidates *l, int *out, const char *axis, int most)
{
    int n = 0;

    for (int d = 1; d <= most; d++) {
        struct spec p = spec_default();
        char text[32];
        struct tp_err ignored;

        snprintf(text, sizeof text, "%s%d", axis, d);
        if (spec_parse(&p, text, &ignored))
            break;
        if (d > 1 && (!allowed(l, axis) || (p.pp > 1 && !fit_stages_even(l->fit, d))))
            continue;
        if (d == 1 || fit_is_possible(l->fit, &p))
            out[n++] = d;
        else if (d <= CANDIDATES_REFUSED_SHOWN || (d & (d - 1)) == 0)
            add(l, &p);
    }
    return n;
}

static tp_status enumerate(struct candidates *l)
{
    size_t most = (size_t)l->max_ranks + 1;
    int *d = arena_array(l->arena, 4 * most, sizeof *d);
    int *tp, *pp, *cp, *dp, n[4];
    struct spec p = spec_default();

    if (!d)
        return TP_E_NOMEM;
    tp = d;
    pp = tp + most;
    cp = pp + most;
    dp = cp + most;
    n[0] = degrees(l, tp, "tp", l->max_ranks);
    n[1] = degrees(l, pp, "pp", l->max_ranks);
    n[2] = degrees(l, cp, "cp", l->max_ranks);
    n[3] = degrees(l, dp, "dp", l->max_ranks);
    for (int a = 0; a < n[0]; a++)
        for (int b = 0; b < n[1] && tp[a] * pp[b] <= l->max_ranks; b++)
            for (int c = 0; c < n[2] && tp[a] * pp[b] * cp[c] <= l->max_ranks; c++)
                for (int e = 0; e < n[3] && tp[a] * pp[b] * cp[c] * dp[e] <= l->max_ranks; e++) {
                    p.tp = tp[a];
                    p.pp = pp[b];
                    p.cp = cp[c];
                    p.dp = dp[e];
                    add_variants(l, &p);
                }
    return l->st;
}

/* ---- ordering ---- */

/* Round the step time to classes of 2 %, so that similar times compare equal and the order is
 * total. */
static double grade(const struct plan_candidate *c)
{
    return c->seconds > 0 ? floor(log(c->seconds) / 0.02) : 0;
}

/* How complex a layout is, apart from its number of ranks. */
static int complexity(const struct run_config *w)
{
    return (w->spec.pp > 1) + (w->spec.cp > 1) + (w->spec.ep > 1) + 2 * (w->spec.vpp > 1) +
           w->spec.sp + w->spec.zero + 4 * (int)w->recompute;
}

static int by_merit(const void *pa, const void *pb)
{
    const struct plan_candidate *a = pa, *b = pb;
    int x = complexity(&a->config), y = complexity(&b->config);
    char s[RUN_CONFIG_TEXT_MAX], t[RUN_CONFIG_TEXT_MAX];

    if (a->legal != b->legal)
        return a->legal ? -1 : 1;
    if (a->is_tight != b->is_tight)
        return b->is_tight ? -1 : 1;
    if (a->is_tight && a->memory != b->memory)
        return a->memory < b->memory ? -1 : 1;
    if (a->legal && grade(a) != grade(b))
        return grade(a) < grade(b) ? -1 : 1;
    if (a->seconds == 0 && a->ranks != b->ranks)
        return b->ranks - a->ranks; /* not predicted: more ranks are faster */
    if (a->ranks != b->ranks)
        return a->ranks - b->ranks;
    if (x != y)
        return x - y;
    return strcmp(run_config_format(s, &a->config), run_config_format(t, &b->config));
}

tp_status candidates_find(struct plan_candidate **out, int *n, const struct job *job,
                          const struct job_findings *findings, int max_ranks, struct arena *arena,
                          struct tp_err *err)
{
    struct candidates l = { .arena = arena, .max_ranks = max_ranks };
    tp_status st = fit_open(&l.fit, job, findings, arena, err);

    if (st)
        return st;
    for (int i = 0; i < job->layouts.n_allow; i++)
        add(&l, &job->layouts.allow[i]);
    if (job->layouts.n_allow == 0)
        l.st = enumerate(&l);
    if (l.st == TP_E_USAGE)
        return tp_fail(err, l.st,
                       "%s: more than %d layouts are possible for %d ranks: name fewer "
                       "layouts.axes, or those wanted in layouts.allow",
                       job->path, CANDIDATES_MAX, max_ranks);
    if (l.st)
        return tp_fail(err, l.st, "no memory to plan");
    if (job->layouts.n_allow == 0 && l.n > 0)
        qsort(l.c, (size_t)l.n, sizeof *l.c, by_merit);
    *out = l.c;
    *n = l.n;
    return TP_OK;
}

/* No candidate fits. Names the most telling reason: one that more ranks would not remove.
 * most: the requested number of ranks, or NULL. */
static tp_status refuse_all(const struct plan_candidate *c, int n, const char *most,
                            struct tp_err *err)
{
    const struct plan_candidate *refused = NULL;
    char found[SPEC_TEXT_MAX], why[TP_ERR_MAX / 2] = "", ranks[64] = "the ranks there are";

    for (int i = 0; i < n; i++)
        if (!c[i].legal && (!refused || (strncmp(refused->why, "needs ", 6) == 0 &&
                                         strncmp(c[i].why, "needs ", 6) != 0)))
            refused = &c[i];
    if (refused)
        snprintf(why, sizeof why, " (%s: %s)", spec_format(found, &refused->config.spec),
                 refused->why);
    if (most)
        snprintf(ranks, sizeof ranks, "%.20s rank%s", most, strcmp(most, "1") == 0 ? "" : "s");
    return tp_fail(err, TP_E_LAYOUT, "none of the layouts that are allowed fits %s%s", ranks, why);
}

/* Whether a candidate has the layout that was asked for; NULL: any. */
static bool is_wanted(const struct spec *wanted, const struct plan_candidate *c)
{
    return !wanted || (spec_matches(wanted, &c->config.spec) && spec_world(wanted) == c->ranks);
}

/* The first legal candidate of those that are tight, or of the others. NULL: there is none. */
static const struct plan_candidate *first_legal(const struct plan_candidate *c, int n,
                                                const struct spec *wanted, long most, bool tight)
{
    for (int i = 0; i < n; i++)
        if (c[i].legal && c[i].is_tight == tight && c[i].ranks <= most && is_wanted(wanted, &c[i]))
            return &c[i];
    return NULL;
}

static const struct plan_candidate *best_of(const struct plan_candidate *c, int n,
                                            const struct spec *wanted, long most)
{
    const struct plan_candidate *found = first_legal(c, n, wanted, most, false);

    return found ? found : first_legal(c, n, wanted, most, true);
}

const struct plan_candidate *candidates_best(const struct plan_candidate *c, int n)
{
    return best_of(c, n, NULL, LONG_MAX);
}

tp_status candidates_pick(struct plan_candidate *out, const struct plan_candidate *c, int n,
                          const char *text, struct tp_err *err)
{
    bool is_count = text[0] && strspn(text, "0123456789") == strlen(text);
    bool is_spec = text[0] && !is_count;
    long most = is_count ? strtol(text, NULL, 10) : INT_MAX;
    const struct plan_candidate *found, *refused = NULL;
    struct spec wanted;
    char name[SPEC_TEXT_MAX];
    tp_status st;

    if (is_spec && (st = spec_parse(&wanted, text, err)))
        return st;
    found = best_of(c, n, is_spec ? &wanted : NULL, most);
    if (found) {
        *out = *found;
        return TP_OK;
    }
    for (int i = 0; i < n && is_spec && !refused; i++)
        if (is_wanted(&wanted, &c[i]))
            refused = &c[i];
    if (refused)
        return tp_fail(err, TP_E_LAYOUT, "%s: %s", spec_format(name, &refused->config.spec),
                       refused->why);
    if (is_spec)
        return tp_fail(err, TP_E_LAYOUT,
                       "%s is not among the layouts that are allowed for the ranks there are "
                       "(tp-run plan shows them)",
                       text);
    return refuse_all(c, n, is_count ? text : NULL, err);
}
