/* orchestrator/run_gpus.c - see run_state.h: the GPUs of tp-train's ranks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/text.h"
#include "orchestrator/job/job_option.h"
#include "orchestrator/run_state.h"

enum { NUMBER_TEXT = 16, CHOICE_LINES = 100 };

static const char VISIBLE[] = "CUDA_VISIBLE_DEVICES";

/* ---- which GPU a rank has ---- */

/* The number of a node's first slot, counted over all nodes. */
static int first_slot(const struct run *r, const struct node *node)
{
    int n = 0;

    for (int i = 0; i < r->nodes.n && r->nodes.node[i] != node; i++)
        n += r->nodes.node[i]->slots;
    return n;
}

/* Entry `i` of a list that commas separate: its text and length. "": there is none. */
static const char *entry_of(const char *list, int i, int *length)
{
    for (; i > 0 && *list; i--) {
        list += strcspn(list, ",");
        list += *list == ',';
    }
    *length = (int)strcspn(list, ",");
    return list;
}

/* Write the list of the attempt's GPUs. given: tp-run's own, or NULL. */
static void write_list(char *list, size_t size, const struct attempt *a, const struct run *r,
                       const char *given)
{
    size_t at = 0;
    int k = 0;

    for (int i = 0; i < a->world; i++) {
        char number[NUMBER_TEXT];
        const char *entry = number;
        int slot, length;

        k = i > 0 && a->rank[i].node == a->rank[i - 1].node ? k + 1 : 0;
        slot = first_slot(r, a->rank[i].node) + k;
        length = snprintf(number, sizeof number, "%d", slot);
        if (given)
            entry = entry_of(given, slot, &length);
        if (length > 0)
            at += (size_t)snprintf(list + at, size - at, "%s%.*s", at ? "," : "", length, entry);
    }
}

void run_gpus_select(const struct run *r, struct environment *env)
{
    const char *given = environment_get(env, VISIBLE);
    const struct attempt *a = &r->attempt;
    size_t size = (given ? strlen(given) : 0) + (size_t)a->world * NUMBER_TEXT + 1;
    char *list;

    if (!r->backend.table->is_one_machine || !job_uses_gpus(r->job))
        return;
    list = calloc(size, 1);
    if (list) {
        write_list(list, size, a, r, given);
        environment_set(env, VISIBLE, list);
    }
    env->failed = env->failed || !list;
    free(list);
}

/* ---- what --device auto has chosen ---- */

void run_gpus_describe(const struct run *r, json_t *event)
{
    int64_t bytes = r->record.findings.gpus.bytes;

    static const char says[] = "tp-train: device: ";
    const char *device = job_option(r->job, "--device");
    char line[400];
    FILE *log;

    if (bytes)
        json_object_set_new(event, "gpu_bytes", json_integer(bytes));
    if (!r->job->is_tp_train || !device || strcmp(device, "auto") != 0 ||
        !(log = fopen(r->attempt.log, "re")))
        return;
    for (int i = 0; i < CHOICE_LINES && fgets(line, sizeof line, log); i++)
        if (strncmp(line, says, sizeof says - 1) == 0) {
            line[strcspn(line, "\n")] = 0;
            json_object_set_new(event, "device", json_string(text_clean(line + sizeof says - 1)));
            break;
        }
    fclose(log);
}

/* ---- GPUs that have failed ---- */

bool run_gpus_is_fault(const struct run *r, const struct attempt_fault *f)
{
    const struct monitor *m = run_monitor(r);
    struct heartbeat_status status;

    return m && monitor_present(m, f->rank, &status) && status.gpu_failed;
}

/* ---- the memory of GPUs ---- */

void run_gpus_learn(struct run *r, bool trains)
{
    const struct plan_candidate *c = run_selected_layout(r);
    struct job_findings_gpus *g = &r->record.findings.gpus;
    const struct monitor *m = run_monitor(r);
    int64_t least = 0;

    if (!m || !job_uses_gpus(r->job))
        return;
    for (int i = 0; i < r->attempt.world; i++) {
        struct heartbeat_status status;

        if (monitor_present(m, i, &status) && status.gpu_bytes &&
            (!least || status.gpu_bytes < least))
            least = status.gpu_bytes;
    }
    if (least != g->bytes && (least || trains))
        *g = (struct job_findings_gpus){ .bytes = least };
    if (least && trains && c->on_gpu && c->memory - least > g->overstated)
        g->overstated = c->memory - least;
}

bool run_gpus_are_full(const struct run *r)
{
    const struct monitor *m = run_monitor(r);

    for (int i = 0; m && i < r->attempt.world; i++) {
        struct heartbeat_status status;

        if (monitor_present(m, i, &status) && status.gpu_full)
            return true;
    }
    return false;
}

bool run_gpus_refuse_layout(struct run *r)
{
    const struct plan_candidate *c = run_selected_layout(r);
    struct job_findings *f = &r->record.findings;

    if (r->attempt.fault.reason != REASON_GPU_MEMORY || !c->on_gpu || !c->memory ||
        step_times_get(&f->times, &c->config) > 0)
        return false;
    if (!f->gpus.refused || c->memory < f->gpus.refused)
        f->gpus.refused = c->memory;
    return true;
}

/* ---- GPUs that are missing ---- */

/* The ranks of this rank's host that have no GPU, as it has reported (core/heartbeat.h). */
static int missing_at(const struct run *r, int rank)
{
    const struct monitor *m = run_monitor(r);
    struct heartbeat_status status;

    return m && monitor_present(m, rank, &status) ? (int)status.gpus_missing : 0;
}

static void report_missing(struct run *r, const struct node *n, int missing, int slots)
{
    char text[160];

    snprintf(text, sizeof text, "%d of %d cannot be used any more", missing, slots);
    run_event(r, EVENT_GPUS_LOST, REASON_GPUS_MISSING, text,
              json_pack("{s:s,s:i}", "node", n->name, "slots", node_slots(n)));
}

/* On one machine the first ranks have the GPUs that are left. */
static void take_slots(struct run *r, int missing)
{
    const struct attempt *a = &r->attempt;

    for (int i = 0; i < r->nodes.n; i++) {
        struct node *n = r->nodes.node[i];
        int before = n->missing;

        for (int k = a->world - missing; k < a->world; k++)
            n->missing += k >= 0 && a->rank[k].node == n;
        if (n->missing > before)
            report_missing(r, n, n->missing - before, n->slots - before);
    }
}

/* A scheduler decides which GPUs ranks get on a node, so a node that lacks some is left out. */
static void leave_out(struct run *r)
{
    const struct attempt *a = &r->attempt;

    for (int i = 0; i < a->world; i++) {
        struct node *n = a->rank[i].node;
        int missing = missing_at(r, i);

        if (missing == 0 || !node_is_usable(n, clock_seconds(), 0))
            continue;
        report_missing(r, n, missing, node_slots(n));
        run_exclude_node(r, n, REASON_GPUS_MISSING, "excluded because GPUs are missing",
                         r->attempt.fault.message);
    }
}

bool run_gpus_are_missing(struct run *r, struct attempt_fault *f)
{
    int missing = 0;

    for (int i = 0; i < r->attempt.world; i++)
        missing = missing_at(r, i) > missing ? missing_at(r, i) : missing;
    if (!job_uses_gpus(r->job) || r->record.best_step < 0 || missing == 0)
        return false;
    f->reason = REASON_GPUS_MISSING;
    if (!r->backend.table->is_one_machine) {
        leave_out(r);
        return true; /* the scheduler may have other nodes */
    }
    take_slots(r, missing);
    return run_free_ranks(r, false) > 0;
}
