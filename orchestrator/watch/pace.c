/* orchestrator/watch/pace.c - see orchestrator/watch/pace.h. */
#include "orchestrator/watch/pace.h"

#include <stdio.h>
#include <stdlib.h>

#include "orchestrator/watch/quantile.h"

enum {
    WINDOWS_CERTAIN = 2,   /* windows in a row before a rank is named */
    WINDOWS_UNCERTAIN = 4, /* the same if its waiting for a processor is not known */
    TIMES = 32,            /* step times that are remembered as "before" */
    TIMES_LEARNT = 5,      /* of them, before a slowdown can be found */
    SPAN_STEPS = 10,       /* steps over which a step time is measured */
    SLOWDOWN_STEPS = 50,
    WARM_STEPS = 10, /* the first steps are slower */
};

static const double WINDOW_MIN_NS = 1e9, PIECE_MIN_NS = 3e8, EXCESS_MIN_NS = 5e6;
static const double SLOWDOWN = 2, RECOVERED = 1.5;

/* The parts of a step, in nanoseconds. */
struct pace_parts {
    double compute, processor, collectives;
};

/* Steps that were measured; together, all in nanoseconds. */
struct pace_sum {
    int64_t steps;
    double all, wait, processor;
};

/* What is measured from one heartbeat to the next over many steps, leaving out what is not
 * training: a save ends a piece, and the next one begins after it. */
struct pace_meter {
    bool marked;
    struct heartbeat_status mark, last; /* the beginning of the piece, and its newest heartbeat */
    struct pace_sum sum;                /* of the pieces before it */
};

struct pace_rank {
    int stage;
    bool certain;
    struct pace_meter window;
    int windows, judged; /* windows that are complete, and that were judged */
    int suspect;         /* windows in a row in which this rank was too slow */
    bool reported;
    struct pace_parts last; /* in the last window */
};

struct pace {
    int world;
    double slow;
    int64_t slow_steps;
    struct pace_meter span; /* of rank 0 */
    int64_t slow_for;       /* steps that were slow, in a row */
    double slow_ns;         /* what they took */
    int slow_since;         /* windows of rank 0 when they began */
    bool reported;          /* the slowdown */
    int n_times;
    double times[TIMES];
    struct pace_parts before; /* medians of the ranks while steps were fast */
    struct pace_rank rank[];
};

struct pace *pace_new(int world, double slow, int64_t slow_steps)
{
    struct pace *p = calloc(1, sizeof *p + (size_t)world * sizeof p->rank[0]);

    if (p) {
        p->world = world;
        p->slow = slow;
        p->slow_steps = slow_steps;
    }
    return p;
}

void pace_free(struct pace *p)
{
    free(p);
}

void pace_set_stage(struct pace *p, int rank, int stage)
{
    p->rank[rank].stage = stage;
}

double pace_compute_seconds(const struct pace *p, int rank)
{
    return p->rank[rank].windows ? p->rank[rank].last.compute / 1e9 : 0;
}

/* ---- measuring ---- */

/* Whether the steps since `mark` contain only training. */
static bool is_training(const struct heartbeat_status *mark, const struct heartbeat_status *now)
{
    return now->phase == HEARTBEAT_TRAIN && now->phase_ns <= mark->step_ns && mark->step >= 0;
}

/* The sum with the piece that is being measured. A rank says only ten times a second for how long
 * it had no processor, so `least_ns` leaves out pieces that are too short to know that. */
static struct pace_sum total(const struct pace_meter *m, double least_ns)
{
    struct pace_sum t = m->sum;
    double all = (double)(m->last.step_ns - m->mark.step_ns);

    if (m->last.step > m->mark.step && all >= least_ns) {
        t.steps += m->last.step - m->mark.step;
        t.all += all;
        t.wait += (double)(m->last.wait_ns - m->mark.wait_ns);
        t.processor += (double)(m->last.delay_ns - m->mark.delay_ns);
    }
    return t;
}

static void begin_piece(struct pace_meter *m, const struct heartbeat_status *s)
{
    m->marked = true;
    m->mark = m->last = *s;
}

/* Add a heartbeat. False: there was no training since the one before. */
static bool measure(struct pace_meter *m, const struct heartbeat_status *s, double least_ns)
{
    if (m->marked && is_training(&m->mark, s)) {
        m->last = *s;
        return true;
    }
    if (m->marked)
        m->sum = total(m, least_ns);
    begin_piece(m, s);
    return false;
}

static void restart(struct pace_meter *m, const struct heartbeat_status *s)
{
    m->sum = (struct pace_sum){ 0 };
    begin_piece(m, s);
}

static void end_window(struct pace_rank *r, const struct pace_sum *t, bool certain)
{
    double steps = (double)t->steps;
    double wait = t->wait < t->all ? t->wait : t->all;
    double processor = t->processor > 0 ? t->processor : 0;
    double own = t->all - wait - processor; /* threads that wait together count more than once */

    r->last = (struct pace_parts){ (own > 0 ? own : 0) / steps, processor / steps, wait / steps };
    r->certain = certain;
    r->windows++;
}

static void feed_window(struct pace *p, struct pace_rank *r, const struct heartbeat_status *s,
                        bool skip)
{
    struct pace_meter *m = &r->window;
    struct pace_sum t;

    if (skip) {
        r->suspect = 0;
        restart(m, s);
        return;
    }
    if (!measure(m, s, PIECE_MIN_NS))
        return;
    t = total(m, PIECE_MIN_NS);
    if (t.steps < p->slow_steps || t.all < WINDOW_MIN_NS)
        return;
    end_window(r, &t, s->delay_ns > 0);
    restart(m, s);
}

/* ---- slow ranks ---- */

/* The median over the other ranks of the stage of their time outside of collectives. 0: not
 * known. */
static double median_of_others(const struct pace *p, int rank)
{
    double all[QUANTILE_MAX];
    int n = 0;

    for (int i = 0; i < p->world && n < QUANTILE_MAX; i++) {
        const struct pace_rank *r = &p->rank[i];

        if (i == rank || r->stage != p->rank[rank].stage)
            continue;
        if (!r->windows)
            return 0;
        all[n++] = r->last.compute + r->last.processor;
    }
    return n ? quantile(all, n, 0.5) : 0;
}

static int windows_needed(const struct pace_rank *r)
{
    return r->certain ? WINDOWS_CERTAIN : WINDOWS_UNCERTAIN;
}

/* Judge the last window of a rank. True: it is slow beyond doubt. */
static bool judge_rank(struct pace *p, int rank, double *others)
{
    struct pace_rank *r = &p->rank[rank];

    *others = median_of_others(p, rank);
    if (r->judged == r->windows || *others <= 0)
        return false;
    r->judged = r->windows;
    if (r->last.compute <= p->slow * *others || r->last.compute - *others < EXCESS_MIN_NS) {
        r->suspect = 0;
        return false;
    }
    return ++r->suspect >= windows_needed(r);
}

static bool judge_slow(struct pace *p, struct pace_finding *out)
{
    double others;

    for (int i = 0; p->slow > 0 && i < p->world; i++) {
        struct pace_rank *r = &p->rank[i];

        if (!judge_rank(p, i, &others) || r->reported)
            continue;
        r->reported = true;
        out->kind = PACE_SLOW_RANK;
        out->rank = i;
        out->times = r->last.compute / others;
        snprintf(out->text, sizeof out->text,
                 "rank %d computes %.0f ms per step, the median of the others is %.0f ms", i,
                 r->last.compute / 1e6, others / 1e6);
        return true;
    }
    return false;
}

/* ---- slowdown ---- */

static double median_part(const struct pace *p, size_t offset)
{
    double all[QUANTILE_MAX];
    int n = 0;

    for (int i = 0; i < p->world && n < QUANTILE_MAX; i++)
        if (p->rank[i].windows)
            all[n++] = *(const double *)((const char *)&p->rank[i].last + offset);
    return n ? quantile(all, n, 0.5) : 0;
}

static struct pace_parts medians(const struct pace *p)
{
    return (struct pace_parts){ median_part(p, offsetof(struct pace_parts, compute)),
                                median_part(p, offsetof(struct pace_parts, processor)),
                                median_part(p, offsetof(struct pace_parts, collectives)) };
}

static double usual_time(const struct pace *p)
{
    int n = p->n_times < TIMES ? p->n_times : TIMES;

    return n >= TIMES_LEARNT ? quantile(p->times, n, 0.5) : 0;
}

/* A span of `steps` steps of rank 0 took `ns` a step. */
static void end_span(struct pace *p, int64_t steps, double ns)
{
    double usual = usual_time(p);

    if (p->rank[0].windows == 0)
        return; /* nobody knows yet what a step consists of */
    if (usual > 0 && ns > SLOWDOWN * usual) {
        if (p->slow_for == 0)
            p->slow_since = p->rank[0].windows;
        p->slow_ns =
            (p->slow_ns * (double)p->slow_for + ns * (double)steps) / (double)(p->slow_for + steps);
        p->slow_for += steps;
        return;
    }
    p->slow_for = 0;
    p->reported = p->reported && ns > RECOVERED * usual;
    if (p->reported)
        return;
    p->times[p->n_times++ % TIMES] = ns;
    p->before = medians(p);
}

static void feed_span(struct pace *p, const struct heartbeat_status *s, bool skip)
{
    struct pace_meter *m = &p->span;
    struct pace_sum t;

    if (skip || (!m->marked && s->step < WARM_STEPS)) {
        m->marked = false;
        m->sum = (struct pace_sum){ 0 };
        return;
    }
    if (!measure(m, s, 0))
        return;
    t = total(m, 0);
    if (t.steps < SPAN_STEPS)
        return;
    end_span(p, t.steps, t.all / (double)t.steps);
    restart(m, s);
}

/* The rank that was too slow in its last windows, -1: none. */
static int suspect_rank(const struct pace *p)
{
    for (int i = 0; i < p->world; i++)
        if (p->rank[i].suspect >= windows_needed(&p->rank[i]))
            return i;
    return -1;
}

/* Which part of the steps grew, as a sentence after the times. */
static void explain(const struct pace *p, struct pace_finding *out, char *text, size_t size)
{
    const struct pace_parts now = medians(p), *was = &p->before;
    double grew = p->slow_ns - usual_time(p);

    out->rank = suspect_rank(p);
    out->part = out->rank >= 0                              ? PACE_RANK
                : now.processor - was->processor > grew / 4 ? PACE_PROCESSOR
                : now.compute - was->compute > grew / 2     ? PACE_COMPUTE
                                                            : PACE_COLLECTIVES;
    if (out->part == PACE_RANK)
        snprintf(text, size, "rank %d computes %.0f ms per step, the median of all is %.0f ms",
                 out->rank, p->rank[out->rank].last.compute / 1e6, now.compute / 1e6);
    else if (out->part == PACE_PROCESSOR)
        snprintf(text, size, "ranks wait %.0f ms per step for a processor, before %.0f ms",
                 now.processor / 1e6, was->processor / 1e6);
    else if (out->part == PACE_COMPUTE)
        snprintf(text, size, "ranks compute %.0f ms per step, before %.0f ms", now.compute / 1e6,
                 was->compute / 1e6);
    else
        snprintf(text, size, "ranks wait %.0f ms per step in collectives, before %.0f ms",
                 now.collectives / 1e6, was->collectives / 1e6);
}

static bool judge_slowdown(struct pace *p, struct pace_finding *out)
{
    double usual = usual_time(p);
    char why[160];

    if (p->reported || p->slow_for < SLOWDOWN_STEPS || p->rank[0].windows - p->slow_since < 2)
        return false; /* the first window may have begun before */
    p->reported = true;
    out->kind = PACE_SLOWDOWN;
    out->times = p->slow_ns / usual;
    explain(p, out, why, sizeof why);
    snprintf(out->text, sizeof out->text,
             "steps have taken %.0f ms for %lld steps, before %.0f ms: %s", p->slow_ns / 1e6,
             (long long)p->slow_for, usual / 1e6, why);
    return true;
}

/* ---- the interface ---- */

void pace_feed(struct pace *p, int rank, const struct heartbeat_status *status, bool skip)
{
    feed_window(p, &p->rank[rank], status, skip);
    if (rank == 0)
        feed_span(p, status, skip);
}

void pace_judge(struct pace *p, struct pace_finding *out)
{
    *out = (struct pace_finding){ .rank = -1 };
    if (!judge_slow(p, out))
        judge_slowdown(p, out);
}
