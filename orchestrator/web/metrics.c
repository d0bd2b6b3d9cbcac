/* orchestrator/web/metrics.c - see orchestrator/web/metrics.h. */
#include "orchestrator/web/metrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/file.h"
#include "orchestrator/state/run_record.h"

/* Where samples are written. */
struct metrics_out {
    FILE *f;
    char job[300]; /* the label of the job, with a comma at its end; "": none */
};

/* The label of the job: in a label's value, \ " and newlines are escaped. */
static void set_job(struct metrics_out *o, const char *job)
{
    size_t n;

    if (!job)
        return;
    n = (size_t)snprintf(o->job, sizeof o->job, "tp_job=\"");
    for (; *job && n + 8 < sizeof o->job; job++) {
        if (*job == '\\' || *job == '"')
            o->job[n++] = '\\';
        o->job[n++] = (unsigned char)*job < ' ' ? ' ' : *job;
    }
    snprintf(o->job + n, sizeof o->job - n, "\",");
}

static void head(const struct metrics_out *o, const char *name, const char *type, const char *help)
{
    fprintf(o->f, "# HELP tp_run_%s %s\n# TYPE tp_run_%s %s\n", name, help, name, type);
}

/* label NULL: the sample has none of its own. */
static void sample(const struct metrics_out *o, const char *name, const char *label,
                   const char *value_of_label, double value)
{
    fprintf(o->f, "tp_run_%s", name);
    if (label)
        fprintf(o->f, "{%s%s=\"%s\"}", o->job, label, value_of_label);
    else if (o->job[0])
        fprintf(o->f, "{%.*s}", (int)strlen(o->job) - 1, o->job);
    fprintf(o->f, " %.15g\n", value);
}

static void metric(const struct metrics_out *o, const char *name, const char *type,
                   const char *help, double value)
{
    head(o, name, type, help);
    sample(o, name, NULL, NULL, value);
}

static double number(const json_t *o, const char *name)
{
    return json_number_value(json_object_get(o, name));
}

/* Write a gauge if the status has the field, and it is not negative. */
static void gauge_if_known(const struct metrics_out *o, const char *name, const char *help,
                           const json_t *s, const char *field)
{
    if (json_is_number(json_object_get(s, field)) && number(s, field) >= 0)
        metric(o, name, "gauge", help, number(s, field));
}

/* Write one sample for each state: 1 for the job's state and 0 for others. So an alert can name a
 * state. */
static void metric_states(const struct metrics_out *o, const char *now)
{
    head(o, "state", "gauge", "1 for the job's state, 0 for others.");
    for (int i = 0; i < RUN_STATES; i++) {
        const char *name = run_state_name((enum run_state)i);

        sample(o, "state", "state", name, now && strcmp(name, now) == 0);
    }
}

static void metric_nodes(const struct metrics_out *o, const json_t *nodes)
{
    static const char *const names[] = { "up", "down", "excluded" };
    int count[3] = { 0 };
    const json_t *node;
    size_t k;

    json_array_foreach((json_t *)(uintptr_t)nodes, k, node)
    {
        const char *state = json_string_value(json_object_get(node, "state"));

        for (int i = 0; state && i < 3; i++)
            count[i] += strcmp(state, names[i]) == 0;
    }
    head(o, "nodes", "gauge", "Nodes by state.");
    for (int i = 0; i < 3; i++)
        sample(o, "nodes", "state", names[i], count[i]);
}

/* One sample for each rank whose computing time is known. */
static void metric_compute(const struct metrics_out *o, const json_t *ranks)
{
    const json_t *rank;
    char name[24];
    size_t k;

    head(o, "rank_compute_seconds", "gauge", "What a rank computes in a step.");
    json_array_foreach((json_t *)(uintptr_t)ranks, k, rank)
    {
        snprintf(name, sizeof name, "%d", (int)number(rank, "rank"));
        if (number(rank, "compute_seconds") > 0)
            sample(o, "rank_compute_seconds", "rank", name, number(rank, "compute_seconds"));
    }
}

/* These are gauges, not counters: when a fault is found, some time moves from training to lost. */
static void metric_spent(const struct metrics_out *o, const json_t *spent)
{
    const char *cause;
    json_t *v;

    head(o, "spent_seconds", "gauge", "Time by what it was spent on.");
    json_object_foreach((json_t *)(uintptr_t)spent, cause, v)
        sample(o, "spent_seconds", "cause", cause, json_number_value(v));
}

static void write_all(const struct metrics_out *o, const json_t *s)
{
    metric(o, "step", "gauge", "Steps done.", number(s, "step"));
    metric(o, "steps", "gauge", "Steps of the whole run, 0: not known.", number(s, "steps"));
    if (json_object_get(s, "loss"))
        metric(o, "loss", "gauge", "Loss of the last step.", number(s, "loss"));
    metric(o, "step_seconds", "gauge", "Median time of a step.", number(s, "step_seconds"));
    gauge_if_known(o, "tokens_per_second", "Tokens trained in a second.", s, "tokens_per_second");
    gauge_if_known(o, "left_seconds", "Time that the steps left take at this speed.", s,
                   "left_seconds");
    metric(o, "ranks", "gauge", "Ranks of the current attempt.", number(s, "world"));
    metric(o, "launches_total", "counter", "Launches so far.", number(s, "attempt"));
    metric(o, "checkpoint_step", "gauge", "Newest committed step, -1: none.",
           number(s, "checkpoint"));
    metric(o, "goodput_ratio", "gauge", "Share of the time that went into steps that were kept.",
           number(s, "goodput"));
    metric(o, "time_seconds", "gauge", "When these metrics were written, in seconds since 1970.",
           clock_wall_seconds());
    metric_states(o, json_string_value(json_object_get(s, "state")));
    metric_nodes(o, json_object_get(s, "nodes"));
    metric_compute(o, json_object_get(s, "ranks"));
    metric_spent(o, json_object_get(s, "spent"));
}

char *metrics_text(size_t *n, const json_t *s, const char *job)
{
    char *text = NULL;
    struct metrics_out o = { .f = open_memstream(&text, n) };

    if (!o.f)
        return NULL;
    set_job(&o, job);
    write_all(&o, s);
    return fclose(o.f) == 0 ? text : NULL;
}

tp_status metrics_write(const char *path, const json_t *status, struct tp_err *err)
{
    size_t n = 0;
    char *text = metrics_text(&n, status, json_string_value(json_object_get(status, "job")));
    tp_status st = text ? file_replace(path, text, n, err)
                        : tp_fail(err, TP_E_NOMEM, "no memory for %s", path);

    free(text);
    return st;
}
