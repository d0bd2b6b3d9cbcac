/* orchestrator/run_status.c - see run_state.h: what `status`, the page and the live line show. */
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "orchestrator/process/home.h"
#include "orchestrator/process/process.h"
#include "orchestrator/run_state.h"
#include "orchestrator/state/json_lines.h"

static json_t *rank_json(const struct run *r, int i)
{
    const struct attempt_rank *k = &r->attempt.rank[i];
    struct mesh_coord at = mesh_coord_of(&r->record.config.spec, i);
    struct heartbeat_status s;
    bool seen = monitor_present(run_monitor(r), i, &s);
    const char *state = k->gone ? "gone" : seen ? heartbeat_phase_name(s.phase) : "starting";
    json_t *o =
        json_pack("{s:i,s:i,s:i,s:i,s:i,s:s,s:s}", "rank", i, "tp", at.tp, "pp", at.pp, "dp", at.dp,
                  "cp", at.cp, "node", k->node ? k->node->name : "", "state", state);

    if (seen)
        json_object_update_new(o, json_pack("{s:I,s:I,s:I,s:f}", "step", (json_int_t)s.step,
                                            "collective", (json_int_t)s.entered, "pid",
                                            (json_int_t)s.pid, "compute_seconds",
                                            monitor_compute_seconds(run_monitor(r), i)));
    return o;
}

static json_t *ranks_json(const struct run *r)
{
    json_t *ranks = json_array();

    for (int i = 0; run_monitor(r) && i < r->attempt.world; i++)
        json_array_append_new(ranks, rank_json(r, i));
    return ranks;
}

static json_t *spent_json(const struct run *r)
{
    json_t *spent = json_object();

    for (int i = 0; i < TIME_CAUSES; i++)
        json_object_set_new(spent, time_account_cause_name((enum time_account_cause)i),
                            json_real(r->record.spent[i]));
    return spent;
}

/* Tokens trained in a second, -1: not known. */
static double tokens_per_second(const struct run *r)
{
    const struct monitor *m = run_monitor(r);
    double tokens = (double)r->job->layouts.batch * (double)r->job->layouts.seq;
    double seconds = m ? monitor_step_seconds(m) : 0;

    return tokens > 0 && seconds > 0 ? tokens / seconds : -1;
}

/* Seconds for the steps left at the current speed, -1: not known. */
static double left_seconds(const struct run *r)
{
    const struct monitor *m = run_monitor(r);
    int64_t step = m ? monitor_best_step(m) : -1;
    double seconds = m ? monitor_step_seconds(m) : 0;

    if (step < 0 || r->job->steps <= 0 || seconds <= 0)
        return -1;
    return step < r->job->steps ? (double)(r->job->steps - step) * seconds : 0;
}

static json_t *last_fault(const struct run_record *b)
{
    if (!b->fault[0])
        return json_null();
    return json_pack("{s:f,s:s,s:s,s:f,s:I}", "time", b->fault_wall, "reason", b->fault_reason,
                     "message", b->fault, "seconds", b->fault_seconds, "repeated_steps",
                     (json_int_t)b->fault_steps);
}

/* What the monitor knows. */
static void add_progress(json_t *o, const struct run *r)
{
    const struct monitor *m = run_monitor(r);
    int64_t step = m ? monitor_best_step(m) : r->record.best_step;
    double loss = m ? monitor_loss(m) : NAN;

    json_object_set_new(o, "step", json_integer(step));
    json_object_set_new(o, "step_seconds", json_real(m ? monitor_step_seconds(m) : 0));
    json_object_set_new(o, "tokens_per_second", json_real(tokens_per_second(r)));
    json_object_set_new(o, "left_seconds", json_real(left_seconds(r)));
    json_object_set_new(o, "last_fault", last_fault(&r->record));
    if (isfinite(loss))
        json_object_set_new(o, "loss", json_real(loss));
    if (m)
        json_object_set_new(o, "deadline_seconds", json_real((double)monitor_deadline(m) / 1e9));
}

static void set_tp_run(json_t *o, const char *how, const char *message)
{
    json_object_set_new(o, "tp_run", json_string(how));
    json_object_set_new(o, "tp_run_message", json_string(message));
}

json_t *run_status(const struct run *r)
{
    const struct run_record *b = &r->record;
    const char *backend = r->job->backend->name;
    char spec[SPEC_TEXT_MAX];
    json_t *allocation = backend_status(&r->backend);
    json_t *o = json_pack(
        "{s:s,s:s,s:I,s:s,s:I,s:I,s:I,s:I,s:f,s:o,s:o,s:o,s:s,s:s,s:s,s:i,s:s,s:I}", "job",
        r->job->name, "state", run_state_name(b->state), "attempt", (json_int_t)b->attempt,
        "layout", spec_format(spec, &b->config.spec), "steps", (json_int_t)r->job->steps,
        "checkpoint", (json_int_t)b->saved, "epoch", (json_int_t)b->epoch, "restarts",
        (json_int_t)b->n_restarts, "goodput", run_record_goodput(b), "spent", spent_json(r),
        "ranks", ranks_json(r), "nodes", run_nodes_json(r), "reason", b->reason, "message",
        b->message, "page", run_page_url(r), "world", r->attempt.world, "backend", backend,
        "layouts_computed", (json_int_t)run_plans_computed(r));

    if (!o)
        return NULL;
    add_progress(o, r);
    json_object_set_new(o, "checkpoint_reported",
                        json_boolean(r->job->is_tp_train || b->saved >= 0));
    json_object_set_new(o, "running", json_boolean(run_has_control(r)));
    set_tp_run(o, "running", "");
    if (allocation)
        json_object_set_new(o, backend, allocation);
    return o;
}

/* ---- tp-run itself ---- */

/* Whether the last event is that tp-run could not continue; text gets its message. */
static bool has_failed_itself(const char *state, char *text, size_t size)
{
    char path[PATH_MAX];
    json_t *lines, *last;
    const char *reason, *message;
    bool failed;

    snprintf(path, sizeof path, "%.4000s/events.jsonl", state);
    lines = json_lines_read(path, 1);
    last = json_array_get(lines, 0);
    reason = json_string_value(json_object_get(last, "reason"));
    message = json_string_value(json_object_get(last, "message"));
    failed = reason && strcmp(reason, event_reason_name(REASON_TP_RUN_ENDED)) == 0;
    snprintf(text, size, "%s", failed && message ? message : "");
    json_decref(lines);
    return failed;
}

static bool supervisor_lives(const struct run_record *b)
{
    const pid_t pid = (pid_t)b->supervisor;
    const char state = b->open && pid > 0 ? process_state(pid) : 0;

    return state && state != 'Z' && process_start(pid) == b->supervisor_start;
}

/* No tp-run answers: find out how it has ended. One that ends by itself removes STATE/home. */
static void explain_end(json_t *o, const struct run *r)
{
    const struct run_record *b = &r->record;
    const char *rest = supervisor_lives(b) ? "the ranks run on; the same command takes them over"
                                           : "the same command continues the job";
    char text[TP_ERR_MAX], why[TP_ERR_MAX];
    struct home home;

    if (home_is_elsewhere(&home, r->job->state)) {
        snprintf(text, sizeof text, "it was started on host %s and does not answer from here",
                 home.host);
        set_tp_run(o, "unreachable", text);
    } else if (home.host[0]) {
        snprintf(text, sizeof text, "it was killed; %s", rest);
        set_tp_run(o, "killed", run_state_is_final(b->state) ? "it was killed" : text);
    } else if (!run_state_is_final(b->state) && has_failed_itself(r->job->state, why, sizeof why)) {
        snprintf(text, sizeof text, "it could not continue: %.700s; %s", why, rest);
        set_tp_run(o, "failed", text);
    } else {
        set_tp_run(o, "ended", "");
    }
}

tp_status run_status_stored(json_t **out, const struct job *job, const struct backend *backend,
                            struct tp_err *err)
{
    struct run *r = calloc(1, sizeof *r);
    json_t *last = NULL;
    const json_t *record;
    tp_status st = r ? journal_peek(&last, job->state, err)
                     : tp_fail(err, TP_E_NOMEM, "no memory for the status");

    if (st == TP_OK) {
        record = journal_run_record(last);
        r->job = job;
        r->backend.table = backend;
        for (int i = 0; i < job->n_nodes; i++)
            node_list_add(&r->nodes, job->nodes[i].name, job->nodes[i].slots);
        st = run_record_read(&r->record, record, job->state, clock_seconds(), err);
        node_list_read(&r->nodes, json_object_get(record, "nodes"), clock_seconds(),
                       job->restart.exclude_for);
    }
    if (st == TP_OK && !(*out = run_status(r)))
        st = tp_fail(err, TP_E_NOMEM, "no memory for the status");
    if (st == TP_OK)
        explain_end(*out, r);
    if (r)
        node_list_free(&r->nodes);
    json_decref(last);
    free(r);
    return st;
}

bool run_leaves_ranks(const struct job *job)
{
    struct run_record *b = calloc(1, sizeof *b);
    json_t *last = NULL;
    struct tp_err ignored;
    const bool live = b && journal_peek(&last, job->state, &ignored) == TP_OK &&
                      run_record_read(b, journal_run_record(last), job->state, clock_seconds(),
                                      &ignored) == TP_OK &&
                      supervisor_lives(b);

    json_decref(last);
    free(b);
    return live;
}

/* Append to a text; what does not fit is cut. */
static void append(char *text, size_t size, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void append(char *text, size_t size, const char *fmt, ...)
{
    size_t n = strlen(text);
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text + n, size - n, fmt, ap);
    va_end(ap);
}

static void append_speed(const struct run *r, char *line, size_t size)
{
    double tokens = tokens_per_second(r), left = left_seconds(r);
    char text[CLOCK_TEXT_MAX];

    if (monitor_step_seconds(run_monitor(r)) > 0)
        append(line, size, ", %.0f ms per step", 1e3 * monitor_step_seconds(run_monitor(r)));
    if (tokens > 0)
        append(line, size, tokens < 10000 ? ", %.0f tokens/s" : ", %.0fk tokens/s",
               tokens < 10000 ? tokens : tokens / 1000);
    if (left >= 0)
        append(line, size, ", %s left", clock_format_duration(text, left));
    if (r->record.saved >= 0)
        append(line, size, ", saved %lld", (long long)r->record.saved);
}

void run_line(const struct run *r, char *line, size_t size)
{
    const struct run_record *b = &r->record;
    const struct monitor *m = run_monitor(r);
    int64_t step = m ? monitor_best_step(m) : b->best_step;
    char text[SPEC_TEXT_MAX + CLOCK_TEXT_MAX];

    snprintf(line, size, "%s: %s", r->job->name, run_state_name(b->state));
    if (r->attempt.world)
        append(line, size, " at %s", spec_format(text, &b->config.spec));
    if (r->attempt.world && m && step >= 0) {
        append(line, size, ", step %lld", (long long)step);
        if (r->job->steps)
            append(line, size, "/%lld", (long long)r->job->steps);
        if (isfinite(monitor_loss(m)))
            append(line, size, ", loss %.4f", monitor_loss(m));
        append_speed(r, line, size);
        append(line, size, ", goodput %.0f %%", 100 * run_record_goodput(b));
    }
    if (b->fault[0])
        append(line, size, "; last fault: %.120s", b->fault);
    if (b->fault[0] && b->fault_seconds > 0)
        append(line, size, " (%s)", clock_format_duration(text, b->fault_seconds));
    backend_line(&r->backend, line, size);
}
