/* orchestrator/run_status.c - what `status`, the page and the live line show. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "orchestrator/run_slurm.h"
#include "orchestrator/run_state.h"

static const double LINE_EVERY_S = 0.5;

static json_t *rank_json(const struct run *r, int i)
{
    const struct run_rank *k = &r->ranks[i];
    struct mesh_coord at = mesh_coord_of(&r->book.way.spec, i);
    struct heartbeat_status s;
    bool seen = monitor_present(r->monitor, i, &s);
    json_t *o =
        json_pack("{s:i,s:i,s:i,s:i,s:i,s:s}", "rank", i, "tp", at.tp, "pp", at.pp, "dp", at.dp,
                  "cp", at.cp, "node", k->node >= 0 ? r->job->nodes[k->node].name : "");

    json_object_set_new(o, "state",
                        json_string(k->gone ? "gone"
                                    : seen  ? heartbeat_phase_name(s.phase)
                                            : "starting"));
    if (seen)
        json_object_update_new(o,
                               json_pack("{s:I,s:I,s:I}", "step", (json_int_t)s.step, "collective",
                                         (json_int_t)s.entered, "pid", (json_int_t)s.pid));
    return o;
}

static json_t *nodes_json(const struct run *r)
{
    json_t *all = json_array();
    double now = run_now();

    for (int i = 0; i < r->job->n_nodes; i++) {
        const struct run_node *n = &r->book.nodes[i];
        const char *state = n->down ? "down" : n->excluded_to > now ? "excluded" : "up";
        int ranks = 0;

        for (int k = 0; r->ranks && k < r->world; k++)
            ranks += r->ranks[k].node == i;
        json_array_append_new(all, json_pack("{s:s,s:i,s:s,s:i,s:I}", "node", r->job->nodes[i].name,
                                             "slots", r->job->nodes[i].slots, "state", state,
                                             "ranks", ranks, "blame", (json_int_t)n->blame));
    }
    return all;
}

json_t *run_status(const struct run *r)
{
    const struct run_record *b = &r->book;
    json_t *ranks = json_array(), *spent = json_object();
    char spec[SPEC_TEXT_MAX];
    double loss = r->monitor ? monitor_loss(r->monitor) : NAN;
    json_t *o;

    for (int i = 0; r->ranks && r->monitor && i < r->world; i++)
        json_array_append_new(ranks, rank_json(r, i));
    for (int i = 0; i < TIME_CAUSES; i++)
        json_object_set_new(spent, time_cause_name((enum time_cause)i), json_real(b->spent[i]));
    o = json_pack("{s:s,s:s,s:I,s:s,s:I,s:I,s:I,s:I,s:I,s:f,s:f,s:o,s:o,s:o,s:s,s:s,s:i}", "job",
                  r->job->name, "state", run_state_name(b->state), "attempt",
                  (json_int_t)b->attempt, "layout", spec_format(spec, &b->way.spec), "step",
                  (json_int_t)(r->monitor ? monitor_best_step(r->monitor) : b->best_step), "steps",
                  (json_int_t)r->job->steps, "checkpoint", (json_int_t)b->saved, "epoch",
                  (json_int_t)b->epoch, "restarts", (json_int_t)b->n_restarts, "goodput",
                  run_record_goodput(b), "step_seconds",
                  r->monitor ? monitor_step_seconds(r->monitor) : 0.0, "spent", spent, "ranks",
                  ranks, "nodes", nodes_json(r), "reason", b->reason, "page",
                  r->page ? status_page_url(r->page) : "", "world", r->world);
    if (o)
        json_object_set_new(o, "running", json_boolean(r->control != NULL));
    if (o && isfinite(loss))
        json_object_set_new(o, "loss", json_real(loss));
    if (o && r->slurm)
        json_object_set_new(o, "slurm", run_slurm_json(r));
    if (o && r->monitor)
        json_object_set_new(o, "deadline_seconds",
                            json_real((double)monitor_deadline(r->monitor) / 1e9));
    return o;
}

tp_status run_status_stored(json_t **out, const struct job *job, struct tp_err *err)
{
    struct run *r = calloc(1, sizeof *r);
    json_t *last = NULL;
    tp_status st = r ? journal_peek(&last, job->state, err)
                     : tp_fail(err, TP_E_NOMEM, "no memory for the status");

    if (st == TP_OK)
        st = run_record_read(&r->book, json_object_get(last, "book"), job, run_now(), err);
    if (st == TP_OK) {
        r->job = job;
        *out = run_status(r);
        run_record_free(&r->book);
    }
    if (st == TP_OK && !*out)
        st = tp_fail(err, TP_E_NOMEM, "no memory for the status");
    json_decref(last);
    free(r);
    return st;
}

json_t *run_timeline(const struct run *r)
{
    return time_account_json(r->ledger, run_now());
}

void run_live_line(struct run *r)
{
    const struct run_record *b = &r->book;
    char spec[SPEC_TEXT_MAX], line[256];
    double now = run_now(), loss;
    int64_t step;

    if (!r->voice->line || now - r->line_at < LINE_EVERY_S)
        return;
    r->line_at = now;
    time_account_touch(r->ledger, now);
    spec_format(spec, &b->way.spec);
    step = r->monitor ? monitor_best_step(r->monitor) : b->best_step;
    loss = r->monitor ? monitor_loss(r->monitor) : NAN;
    if (r->world && step >= 0)
        snprintf(line, sizeof line,
                 "%s: %s at %s, step %lld%s%.0lld, loss %.4f, %.0f ms a step, goodput %.0f %%",
                 r->job->name, run_state_name(b->state), spec, (long long)step,
                 r->job->steps ? "/" : "", (long long)r->job->steps, loss,
                 1e3 * monitor_step_seconds(r->monitor), 100 * run_record_goodput(b));
    else
        snprintf(line, sizeof line, "%s: %s%s%s", r->job->name, run_state_name(b->state),
                 r->world ? " at " : "", r->world ? spec : "");
    if (r->slurm)
        run_slurm_line(r, line, sizeof line);
    r->voice->line(r->voice->ctx, line);
}
