/* orchestrator/ledger.c - see orchestrator/ledger.h. */
#include "orchestrator/ledger.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SPANS_KEPT = 4000, POINTS_KEPT = 20000, POINTS_SHOWN = 2000 };

struct span {
    double begin, end; /* CLOCK_MONOTONIC seconds, the last one's end is open */
    enum ledger_cause cause;
};

struct point {
    int64_t attempt, step;
    double loss;
};

struct ledger {
    char path_spans[PATH_MAX], path_curve[PATH_MAX];
    double *spent;
    double wall; /* wall clock minus monotonic, at opening */
    int n_spans, n_written;
    int n_points, n_points_written;
    json_t *old; /* spans of earlier tp-runs, as they are shown */
    struct span spans[SPANS_KEPT];
    struct point points[POINTS_KEPT];
};

static json_t *read_lines(const char *path)
{
    json_t *all = json_array();
    FILE *f = fopen(path, "re");
    char *line = NULL;
    size_t size = 0;

    while (f && getline(&line, &size, f) > 0) {
        json_t *o = json_loads(line, 0, NULL);

        if (o)
            json_array_append_new(all, o);
    }
    free(line);
    if (f)
        fclose(f);
    return all;
}

static void keep_point(struct ledger *l, const struct point *p)
{
    if (l->n_points == POINTS_KEPT) { /* thin out: every other one stays */
        for (int i = 0; i < POINTS_KEPT / 2; i++)
            l->points[i] = l->points[2 * i];
        l->n_points = l->n_points_written = POINTS_KEPT / 2;
    }
    l->points[l->n_points++] = *p;
}

tp_status ledger_open(struct ledger **out, const char *state, double *spent, double now,
                      struct tp_err *err)
{
    struct ledger *l = calloc(1, sizeof *l);
    struct timespec wall;
    json_t *curve, *v;
    size_t i;

    if (!l)
        return tp_fail(err, TP_E_NOMEM, "no memory for the ledger");
    clock_gettime(CLOCK_REALTIME, &wall);
    l->wall = (double)wall.tv_sec + (double)wall.tv_nsec / 1e9 - now;
    l->spent = spent;
    snprintf(l->path_spans, sizeof l->path_spans, "%s/timeline.jsonl", state);
    snprintf(l->path_curve, sizeof l->path_curve, "%s/curve.jsonl", state);
    l->old = read_lines(l->path_spans);
    curve = read_lines(l->path_curve);
    json_array_foreach(curve, i, v)
    {
        const struct point p = { json_integer_value(json_array_get(v, 0)),
                                 json_integer_value(json_array_get(v, 1)),
                                 json_number_value(json_array_get(v, 2)) };

        keep_point(l, &p);
    }
    l->n_points_written = l->n_points;
    json_decref(curve);
    l->spans[0] = (struct span){ now, now, LEDGER_PLANNING };
    l->n_spans = 1;
    *out = l;
    return TP_OK;
}

static void add_span(struct ledger *l, enum ledger_cause cause, double begin)
{
    struct span *last = &l->spans[l->n_spans - 1];

    last->end = begin;
    if (last->cause == cause)
        return;
    if (last->end <= last->begin) {
        last->cause = cause;
        return;
    }
    if (l->n_spans == SPANS_KEPT) { /* the older half is only a sum from now on */
        ledger_flush(l);
        memmove(l->spans, l->spans + SPANS_KEPT / 2, SPANS_KEPT / 2 * sizeof l->spans[0]);
        l->n_spans = SPANS_KEPT / 2;
        l->n_written = l->n_spans - 1;
    }
    l->spans[l->n_spans++] = (struct span){ begin, begin, cause };
}

/* The sums are kept up to date at each switch: what was added for the open span before is known. */
static void settle(struct ledger *l, double now)
{
    struct span *last = &l->spans[l->n_spans - 1];

    if (now > last->end) {
        l->spent[last->cause] += now - last->end;
        last->end = now;
    }
}

void ledger_touch(struct ledger *l, double now)
{
    settle(l, now);
}

void ledger_switch(struct ledger *l, enum ledger_cause cause, double now)
{
    settle(l, now);
    add_span(l, cause, now);
}

void ledger_fault(struct ledger *l, double saved, double alive, enum ledger_cause next, double now)
{
    settle(l, now);
    for (int i = l->n_spans - 1; i >= l->n_written && l->spans[i].end > saved; i--) {
        struct span s = l->spans[i];
        double cut = s.begin > saved ? s.begin : saved, end = s.end < alive ? s.end : alive;

        if (s.cause != LEDGER_TRAINING)
            continue;
        if (i == l->n_spans - 1) { /* training up to the fault: kept, lost, detecting */
            l->spent[LEDGER_TRAINING] -= s.end - cut;
            end = end > cut ? end : cut;
            l->spent[LEDGER_LOST] += end - cut;
            l->spent[LEDGER_DETECTING] += s.end - end;
            add_span(l, LEDGER_LOST, cut);
            add_span(l, LEDGER_DETECTING, end);
        } else if (cut == s.begin) {
            l->spent[LEDGER_TRAINING] -= s.end - s.begin;
            l->spent[LEDGER_LOST] += s.end - s.begin;
            l->spans[i].cause = LEDGER_LOST;
        }
    }
    l->spans[l->n_spans - 1].end = now;
    add_span(l, next, now);
}

void ledger_flush(struct ledger *l)
{
    FILE *f = fopen(l->path_spans, "ae"), *c = fopen(l->path_curve, "ae");

    for (; f && l->n_written < l->n_spans - 1; l->n_written++) {
        const struct span *s = &l->spans[l->n_written];

        fprintf(f, "[%.3f, %.3f, \"%s\"]\n", s->begin + l->wall, s->end + l->wall,
                ledger_cause_name(s->cause));
    }
    for (; c && l->n_points_written < l->n_points; l->n_points_written++) {
        const struct point *p = &l->points[l->n_points_written];

        fprintf(c, "[%lld, %lld, %.9g]\n", (long long)p->attempt, (long long)p->step, p->loss);
    }
    if (f)
        fclose(f);
    if (c)
        fclose(c);
}

void ledger_loss(struct ledger *l, int64_t attempt, int64_t step, double loss)
{
    const struct point *last = l->n_points ? &l->points[l->n_points - 1] : NULL;
    const struct point p = { attempt, step, loss };

    if (step < 0 || !isfinite(loss) || (last && last->attempt == attempt && last->step == step))
        return;
    keep_point(l, &p);
}

json_t *ledger_json(const struct ledger *l, double now)
{
    json_t *spans = json_deep_copy(l->old), *curve = json_array();
    int stride = l->n_points / POINTS_SHOWN + 1;

    for (int i = 0; i < l->n_spans; i++) {
        const struct span *s = &l->spans[i];
        double end = i == l->n_spans - 1 ? now : s->end;

        json_array_append_new(spans, json_pack("[f,f,s]", s->begin + l->wall, end + l->wall,
                                               ledger_cause_name(s->cause)));
    }
    for (int i = 0; i < l->n_points; i += stride) {
        const struct point *p = &l->points[i];

        json_array_append_new(
            curve, json_pack("[I,I,f]", (json_int_t)p->attempt, (json_int_t)p->step, p->loss));
    }
    return json_pack("{s:o,s:o}", "spans", spans, "curve", curve);
}

void ledger_close(struct ledger *l, double now)
{
    if (!l)
        return;
    settle(l, now);
    add_span(l, LEDGER_CAUSES, now); /* so that the open one is written too */
    ledger_flush(l);
    json_decref(l->old);
    free(l);
}
