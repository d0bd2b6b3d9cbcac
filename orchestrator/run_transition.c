/* orchestrator/run_transition.c - see run_state.h: transitions between states, with a record and
 * events.
 */
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "core/text.h"
#include "orchestrator/run_state.h"

/* The journal cannot be written (a full disk, a quota). While ranks train, tp-run continues,
 * because its records only note progress: a takeover without them is like a takeover after tp-run
 * was killed a moment earlier. Every other record announces an action, which must not begin without
 * it. */
static bool may_continue(struct run *r, enum run_state to)
{
    if (to != RUN_TRAIN && to != RUN_SAVE)
        return false;
    if (!journal_has_failed(r->journal))
        run_event(r, EVENT_JOURNAL_FAILED, REASON_JOURNAL_UNWRITABLE, text_clean(r->err.msg), NULL);
    journal_set_failed(r->journal, true);
    return true;
}

tp_status run_transition(struct run *r, enum run_state to, const char *what)
{
    json_t *record, *run;
    tp_status st;

    r->record.state = to;
    run = run_record_json(&r->record);
    if (run) {
        json_object_set_new(run, "nodes", node_list_json(&r->nodes, r->job->backend->finds_nodes));
        json_object_set_new(run, "placement", attempt_placement(&r->attempt));
        json_object_set_new(run, "backend", backend_record(&r->backend));
    }
    record = run ? json_pack("{s:f,s:s,s:s,s:o}", "time", clock_wall_seconds(), "transition",
                             run_state_name(to), "what", what, "record", run)
                 : NULL;
    if (!record)
        return tp_fail(&r->err, TP_E_NOMEM, "no memory for a journal record");
    st = journal_append(r->journal, record, &r->err);
    if (st)
        return may_continue(r, to) ? TP_OK : st;
    if (journal_has_failed(r->journal)) {
        journal_set_failed(r->journal, false);
        run_event(r, EVENT_JOURNAL_RECOVERED, REASON_NONE, NULL, NULL);
    }
    return TP_OK;
}

/* Report an event with codes as texts. Takes over `more`. */
static void report(struct run *r, const char *event, const char *reason, const char *message,
                   json_t *more)
{
    const struct monitor *m = run_monitor(r);
    char spec[SPEC_TEXT_MAX];
    int64_t step = m ? monitor_best_step(m) : -1;
    json_t *o = json_pack("{s:f,s:s,s:I,s:s,s:I}", "time", clock_wall_seconds(), "event", event,
                          "attempt", (json_int_t)r->record.attempt, "layout",
                          spec_format(spec, &r->record.config.spec), "step",
                          (json_int_t)(step >= 0 ? step : r->record.best_step));

    if (o && reason[0])
        json_object_set_new(o, "reason", json_string(reason));
    if (o && message && message[0])
        json_object_set_new(o, "message", json_string(message));
    if (o && more)
        json_object_update(o, more);
    json_decref(more);
    if (o)
        run_report(r, o);
}

void run_event(struct run *r, enum event_kind kind, enum event_reason reason, const char *message,
               json_t *more)
{
    report(r, event_name(kind), event_reason_name(reason), message, more);
}

void run_event_of_backend(void *run, const char *event, const char *reason, const char *message,
                          json_t *more)
{
    char text[TP_ERR_MAX];

    snprintf(text, sizeof text, "%s", message ? message : "");
    report(run, event, reason, text_clean(text), more);
}

void run_finish(struct run *r, enum run_state final, tp_status result, const char *reason,
                const char *message)
{
    enum event_kind kind = final == RUN_DONE      ? EVENT_DONE
                           : final == RUN_STOPPED ? EVENT_STOPPED
                                                  : EVENT_FAILED;

    r->end.over = true;
    r->end.result = result;
    r->record.done_steps = final == RUN_DONE ? r->job->steps : 0;
    snprintf(r->end.text, sizeof r->end.text, "%s", message);
    text_clean(r->end.text);
    snprintf(r->record.reason, sizeof r->record.reason, "%s", reason);
    snprintf(r->record.message, sizeof r->record.message, "%.*s", RUN_RECORD_TEXT_MAX - 1,
             r->end.text);
    text_clean(r->record.message);
    report(r, event_name(kind), reason, r->end.text, NULL);
    if (run_transition(r, final, "final")) {
        r->end.result = r->err.status;
        snprintf(r->end.text, sizeof r->end.text, "%s", r->err.msg);
    }
}
