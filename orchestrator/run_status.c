/* orchestrator/run_status.c - see run_state.h: what `status`, the page and the live line show. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/clock.h"
#include "orchestrator/run_state.h"

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
        json_object_update_new(o,
                               json_pack("{s:I,s:I,s:I}", "step", (json_int_t)s.step, "collective",
                                         (json_int_t)s.entered, "pid", (json_int_t)s.pid));
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

/* What the monitor knows. */
static void add_progress(json_t *o, const struct run *r)
{
    const struct monitor *m = run_monitor(r);
    int64_t step = m ? monitor_best_step(m) : r->record.best_step;
    double loss = m ? monitor_loss(m) : NAN;

    json_object_set_new(o, "step", json_integer(step));
    json_object_set_new(o, "step_seconds", json_real(m ? monitor_step_seconds(m) : 0));
    if (isfinite(loss))
        json_object_set_new(o, "loss", json_real(loss));
    if (m)
        json_object_set_new(o, "deadline_seconds", json_real((double)monitor_deadline(m) / 1e9));
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
    json_object_set_new(o, "running", json_boolean(run_has_control(r)));
    if (allocation)
        json_object_set_new(o, backend, allocation);
    return o;
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
    if (r)
        node_list_free(&r->nodes);
    json_decref(last);
    free(r);
    return st;
}

void run_line(const struct run *r, char *line, size_t size)
{
    const struct run_record *b = &r->record;
    const struct monitor *m = run_monitor(r);
    int64_t step = m ? monitor_best_step(m) : b->best_step;
    char spec[SPEC_TEXT_MAX];

    spec_format(spec, &b->config.spec);
    if (r->attempt.world && m && step >= 0)
        snprintf(line, size,
                 "%s: %s at %s, step %lld%s%.0lld, loss %.4f, %.0f ms per step, goodput %.0f %%",
                 r->job->name, run_state_name(b->state), spec, (long long)step,
                 r->job->steps ? "/" : "", (long long)r->job->steps, monitor_loss(m),
                 1e3 * monitor_step_seconds(m), 100 * run_record_goodput(b));
    else
        snprintf(line, size, "%s: %s%s%s", r->job->name, run_state_name(b->state),
                 r->attempt.world ? " at " : "", r->attempt.world ? spec : "");
    backend_line(&r->backend, line, size);
}
