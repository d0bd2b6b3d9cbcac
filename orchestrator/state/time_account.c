/* orchestrator/state/time_account.c - see orchestrator/state/time_account.h. */
#include "orchestrator/state/time_account.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "orchestrator/state/json_lines.h"

enum {
    SPANS_KEPT = 4000,
    SPANS_SHOWN = 1500,
    BINS = 400,
    POINTS_KEPT = 20000,
    POINTS_SHOWN = 2000
};

struct time_account_span {
    double begin, end; /* clock_seconds; the end of the last span grows */
    enum time_account_cause cause;
};

struct time_account_point {
    int64_t attempt, step;
    double loss;
};

struct time_account {
    char path_spans[PATH_MAX], path_curve[PATH_MAX];
    double *spent;
    double wall; /* wall clock minus clock_seconds, at opening */
    int n_spans, n_written;
    int n_points, n_points_written;
    int n_old;
    struct time_account_span *old; /* before spans[], by the wall clock; malloc'ed */
    struct time_account_span spans[SPANS_KEPT];
    struct time_account_point points[POINTS_KEPT];
};

const char *time_account_cause_name(enum time_account_cause c)
{
    static const char *const names[TIME_CAUSES] = { "training",  "saving",   "lost",
                                                    "detecting", "planning", "resharding",
                                                    "starting",  "waiting",  "stopping" };

    return c < TIME_CAUSES ? names[c] : "?";
}

static FILE *open_lines(const char *path)
{
    FILE *f = fopen(path, "a+e");

    if (f)
        json_lines_end(fileno(f));
    return f;
}

static void write_points(struct time_account *l)
{
    FILE *f = open_lines(l->path_curve);

    for (; f && l->n_points_written < l->n_points; l->n_points_written++) {
        const struct time_account_point *p = &l->points[l->n_points_written];

        fprintf(f, "[%lld, %lld, %.9g]\n", (long long)p->attempt, (long long)p->step, p->loss);
    }
    if (f)
        fclose(f);
}

static void keep_point(struct time_account *l, const struct time_account_point *p)
{
    if (l->n_points == POINTS_KEPT) { /* keep every second point; the file has all */
        write_points(l);
        for (int i = 0; i < POINTS_KEPT / 2; i++)
            l->points[i] = l->points[2 * i];
        l->n_points = l->n_points_written = POINTS_KEPT / 2;
    }
    l->points[l->n_points++] = *p;
}

static void read_point(void *account, json_t *v)
{
    struct time_account *l = account;
    const struct time_account_point p = { json_integer_value(json_array_get(v, 0)),
                                          json_integer_value(json_array_get(v, 1)),
                                          json_number_value(json_array_get(v, 2)) };

    keep_point(l, &p);
    l->n_points_written = l->n_points;
}

static tp_status read_spans(struct time_account *l, struct tp_err *err)
{
    json_t *spans = json_lines_read(l->path_spans, INT_MAX), *v;
    size_t i;

    l->old = calloc(json_array_size(spans) + 1, sizeof *l->old);
    json_array_foreach(spans, i, v)
    {
        const char *name = json_string_value(json_array_get(v, 2));
        struct time_account_span *s = l->old ? &l->old[l->n_old] : NULL;

        for (int c = 0; s && name && c < TIME_CAUSES; c++)
            if (strcmp(name, time_account_cause_name((enum time_account_cause)c)) == 0) {
                *s = (struct time_account_span){ json_number_value(json_array_get(v, 0)),
                                                 json_number_value(json_array_get(v, 1)),
                                                 (enum time_account_cause)c };
                l->n_old++;
            }
    }
    json_decref(spans);
    return l->old ? TP_OK : tp_fail(err, TP_E_NOMEM, "no memory for the time account");
}

tp_status time_account_open(struct time_account **out, const char *state, double *spent, double now,
                            struct tp_err *err)
{
    struct time_account *l = calloc(1, sizeof *l);
    tp_status st;

    if (!l)
        return tp_fail(err, TP_E_NOMEM, "no memory for the time account");
    l->wall = clock_wall_seconds() - now;
    l->spent = spent;
    snprintf(l->path_spans, sizeof l->path_spans, "%s/timeline.jsonl", state);
    snprintf(l->path_curve, sizeof l->path_curve, "%s/curve.jsonl", state);
    if ((st = read_spans(l, err))) {
        free(l);
        return st;
    }
    json_lines_each(l->path_curve, read_point, l); /* a long job has millions */
    l->spans[0] = (struct time_account_span){ now, now, TIME_PLANNING };
    l->n_spans = 1;
    *out = l;
    return TP_OK;
}

/* Move the older half of spans[] to `old`. Without memory, only their sums remain. */
static void age_spans(struct time_account *l)
{
    struct time_account_span *more =
        realloc(l->old, ((size_t)l->n_old + SPANS_KEPT / 2 + 1) * sizeof *l->old);

    time_account_flush(l);
    if (more)
        l->old = more;
    for (int i = 0; more && i < SPANS_KEPT / 2; i++) {
        const struct time_account_span *s = &l->spans[i];

        l->old[l->n_old++] =
            (struct time_account_span){ s->begin + l->wall, s->end + l->wall, s->cause };
    }
    memmove(l->spans, l->spans + SPANS_KEPT / 2, SPANS_KEPT / 2 * sizeof l->spans[0]);
    l->n_spans = SPANS_KEPT / 2;
    l->n_written = l->n_spans - 1;
}

static void add_span(struct time_account *l, enum time_account_cause cause, double begin)
{
    struct time_account_span *last = &l->spans[l->n_spans - 1];

    last->end = begin;
    if (last->cause == cause)
        return;
    if (last->end <= last->begin) {
        last->cause = cause;
        return;
    }
    if (l->n_spans == SPANS_KEPT)
        age_spans(l);
    l->spans[l->n_spans++] = (struct time_account_span){ begin, begin, cause };
}

/* Extend the last span to `now`, and its sum. */
static void settle(struct time_account *l, double now)
{
    struct time_account_span *last = &l->spans[l->n_spans - 1];

    if (now > last->end) {
        l->spent[last->cause] += now - last->end;
        last->end = now;
    }
}

void time_account_touch(struct time_account *l, double now)
{
    settle(l, now);
}

void time_account_switch(struct time_account *l, enum time_account_cause cause, double now)
{
    settle(l, now);
    add_span(l, cause, now);
}

void time_account_fault(struct time_account *l, double saved, double alive,
                        enum time_account_cause next, double now)
{
    settle(l, now);
    for (int i = l->n_spans - 1; i >= l->n_written && l->spans[i].end > saved; i--) {
        struct time_account_span s = l->spans[i];
        double cut = s.begin > saved ? s.begin : saved, end = s.end < alive ? s.end : alive;

        if (s.cause != TIME_TRAINING)
            continue;
        if (i == l->n_spans - 1) { /* divide the last training span: kept, lost, detecting */
            l->spent[TIME_TRAINING] -= s.end - cut;
            end = end > cut ? end : cut;
            l->spent[TIME_LOST] += end - cut;
            l->spent[TIME_DETECTING] += s.end - end;
            add_span(l, TIME_LOST, cut);
            add_span(l, TIME_DETECTING, end);
        } else if (cut == s.begin) {
            l->spent[TIME_TRAINING] -= s.end - s.begin;
            l->spent[TIME_LOST] += s.end - s.begin;
            l->spans[i].cause = TIME_LOST;
        }
    }
    l->spans[l->n_spans - 1].end = now;
    add_span(l, next, now);
}

void time_account_flush(struct time_account *l)
{
    FILE *f = open_lines(l->path_spans);

    for (; f && l->n_written < l->n_spans - 1; l->n_written++) {
        const struct time_account_span *s = &l->spans[l->n_written];

        fprintf(f, "[%.3f, %.3f, \"%s\"]\n", s->begin + l->wall, s->end + l->wall,
                time_account_cause_name(s->cause));
    }
    if (f)
        fclose(f);
    write_points(l);
}

void time_account_loss(struct time_account *l, int64_t attempt, int64_t step, double loss)
{
    const struct time_account_point *last = l->n_points ? &l->points[l->n_points - 1] : NULL;
    const struct time_account_point p = { attempt, step, loss };

    if (step < 0 || !isfinite(loss) || (last && last->attempt == attempt && last->step == step))
        return;
    keep_point(l, &p);
}

/* The i-th of all spans, the old ones first, by the wall clock. */
static struct time_account_span span_of(const struct time_account *l, int i, double now)
{
    struct time_account_span s = i < l->n_old ? l->old[i] : l->spans[i - l->n_old];

    if (i >= l->n_old) {
        s.begin += l->wall;
        s.end = (i == l->n_old + l->n_spans - 1 ? now : s.end) + l->wall;
    }
    return s;
}

static void show(json_t *out, double begin, double end, enum time_account_cause cause)
{
    json_array_append_new(out, json_pack("[f,f,s]", begin, end, time_account_cause_name(cause)));
}

/* There are more spans than a page has pixels: divide the whole time into BINS parts and show how
 * much of each part was spent on what. This keeps short spans, which leaving out spans would
 * lose. */
static void show_bins(json_t *out, const struct time_account *l, double now)
{
    int n = l->n_old + l->n_spans;
    double from = span_of(l, 0, now).begin, to = from, width;
    double sum[BINS][TIME_CAUSES] = { { 0 } };

    for (int i = 0; i < n;
         i++) /* the last span may not end last: the wall clock may have been set back */
        to = fmax(to, span_of(l, i, now).end);
    width = (to - from) / BINS;
    if (!(width > 0))
        return;
    for (int i = 0; i < n; i++) {
        const struct time_account_span s = span_of(l, i, now);
        double at = s.begin > from ? s.begin : from;

        for (int b = (int)fmin((at - from) / width, BINS); b < BINS && at < s.end; b++) {
            double end = fmin(s.end, from + (b + 1) * width);

            sum[b][s.cause] += fmax(end - at, 0);
            at = fmax(end, at);
        }
    }
    for (int b = 0; b < BINS; b++) {
        double at = from + b * width;

        for (int c = 0; c < TIME_CAUSES; c++) {
            if (sum[b][c] > 0)
                show(out, at, at + sum[b][c], (enum time_account_cause)c);
            at += sum[b][c];
        }
    }
}

json_t *time_account_json(const struct time_account *l, double now)
{
    json_t *spans = json_array(), *curve = json_array();
    int stride = l->n_points / POINTS_SHOWN + 1, n = l->n_old + l->n_spans;

    if (n > SPANS_SHOWN)
        show_bins(spans, l, now);
    for (int i = 0; n <= SPANS_SHOWN && i < n; i++) {
        const struct time_account_span s = span_of(l, i, now);

        show(spans, s.begin, s.end, s.cause);
    }
    for (int i = 0; i < l->n_points; i += stride) {
        const struct time_account_point *p = &l->points[i];

        json_array_append_new(
            curve, json_pack("[I,I,f]", (json_int_t)p->attempt, (json_int_t)p->step, p->loss));
    }
    return json_pack("{s:o,s:o}", "spans", spans, "curve", curve);
}

void time_account_close(struct time_account *l, double now)
{
    if (!l)
        return;
    settle(l, now);
    add_span(l, TIME_CAUSES, now); /* ends the last span, so that it is written */
    time_account_flush(l);
    free(l->old);
    free(l);
}
