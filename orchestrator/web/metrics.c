/* orchestrator/web/metrics.c - see orchestrator/web/metrics.h. */
#include "orchestrator/web/metrics.h"

#include <stdio.h>
#include <string.h>

#include "orchestrator/state/run_record.h"

static void metric(FILE *f, const char *name, const char *type, const char *help, double value)
{
    fprintf(f, "# HELP tp_run_%s %s\n# TYPE tp_run_%s %s\ntp_run_%s %.9g\n", name, help, name, type,
            name, value);
}

static double number(const json_t *o, const char *name)
{
    return json_number_value(json_object_get(o, name));
}

/* Write one sample for each state: 1 for the job's state and 0 for others. So an alert can name a
 * state. */
static void metric_states(FILE *f, const char *now)
{
    fprintf(f, "# HELP tp_run_state 1 for the job's state, 0 for others.\n"
               "# TYPE tp_run_state gauge\n");
    for (int i = 0; i < RUN_STATES; i++) {
        const char *name = run_state_name((enum run_state)i);

        fprintf(f, "tp_run_state{state=\"%s\"} %d\n", name, now && strcmp(name, now) == 0);
    }
}

static void metric_nodes(FILE *f, const json_t *nodes)
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
    fprintf(f, "# HELP tp_run_nodes Nodes by state.\n"
               "# TYPE tp_run_nodes gauge\n");
    for (int i = 0; i < 3; i++)
        fprintf(f, "tp_run_nodes{state=\"%s\"} %d\n", names[i], count[i]);
}

/* These are gauges, not counters: when a fault is found, some time moves from training to lost. */
static void metric_spent(FILE *f, const json_t *spent)
{
    const char *cause;
    json_t *v;

    fprintf(f, "# HELP tp_run_spent_seconds Time by what it was spent on.\n"
               "# TYPE tp_run_spent_seconds gauge\n");
    json_object_foreach((json_t *)(uintptr_t)spent, cause, v)
        fprintf(f, "tp_run_spent_seconds{cause=\"%s\"} %.6f\n", cause, json_number_value(v));
}

char *metrics_text(size_t *n, const json_t *s)
{
    char *text = NULL;
    FILE *f = open_memstream(&text, n);

    if (!f)
        return NULL;
    metric(f, "step", "gauge", "Steps done.", number(s, "step"));
    metric(f, "steps", "gauge", "Steps of the whole run, 0: not known.", number(s, "steps"));
    if (json_object_get(s, "loss"))
        metric(f, "loss", "gauge", "Loss of the last step.", number(s, "loss"));
    metric(f, "step_seconds", "gauge", "Median time of a step.", number(s, "step_seconds"));
    metric(f, "ranks", "gauge", "Ranks of the current attempt.", number(s, "world"));
    metric(f, "launches_total", "counter", "Launches so far.", number(s, "attempt"));
    metric(f, "checkpoint_step", "gauge", "Newest committed step, -1: none.",
           number(s, "checkpoint"));
    metric(f, "goodput_ratio", "gauge", "Share of the time that went into steps that were kept.",
           number(s, "goodput"));
    metric_states(f, json_string_value(json_object_get(s, "state")));
    metric_nodes(f, json_object_get(s, "nodes"));
    metric_spent(f, json_object_get(s, "spent"));
    return fclose(f) == 0 ? text : NULL;
}
