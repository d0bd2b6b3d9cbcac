/* orchestrator/run_transition.c - from state to state: the journal's record, the event, the last
 * word. */
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "core/text.h"
#include "orchestrator/run_state.h"

double run_now(void)
{
    return (double)clock_ns() / 1e9;
}

/* The journal takes no more (a full disk, a quota). While ranks train that is no reason to leave
 * them alone: such a record only notes progress, and who takes over without it finds what a tp-run
 * killed a moment earlier leaves. Any other announces an action, which is not begun then. */
static bool may_do_without(struct run *r, enum run_state to)
{
    bool told = r->journal_failed;

    if (to != RUN_TRAIN && to != RUN_SAVE)
        return false;
    r->journal_failed = true;
    if (!told)
        run_event(r, "journal_failed", json_pack("{s:s}", "reason", text_clean(r->err.msg)));
    return true;
}

tp_status run_transition(struct run *r, enum run_state to, const char *what)
{
    json_t *record, *book;
    tp_status st;

    r->book.state = to;
    book = run_record_json(&r->book, r->job);
    record = book ? json_pack("{s:f,s:s,s:s,s:o}", "time", clock_wall_seconds(), "edge",
                              run_state_name(to), "what", what, "book", book)
                  : NULL;
    if (!record)
        return tp_fail(&r->err, TP_E_NOMEM, "no memory for a journal record");
    st = journal_append(r->journal, record, &r->err);
    if (st)
        return may_do_without(r, to) ? TP_OK : st;
    if (r->journal_failed)
        run_event(r, "journal_again", NULL);
    r->journal_failed = false;
    return TP_OK;
}

static bool is_bad_news(const char *event)
{
    static const char *const news[] = { "rank_exit",  "hang",      "node_lost",
                                        "nan",        "failed",    "done",
                                        "quarantine", "loss_jump", "journal_failed" };

    for (size_t i = 0; i < sizeof news / sizeof news[0]; i++)
        if (strcmp(event, news[i]) == 0)
            return true;
    return false;
}

void run_event(struct run *r, const char *event, json_t *more)
{
    char spec[SPEC_TEXT_MAX];
    struct tp_err ignored;
    int64_t step = r->monitor ? monitor_best_step(r->monitor) : -1;
    json_t *o =
        json_pack("{s:f,s:s,s:I,s:s,s:I}", "time", clock_wall_seconds(), "event", event, "attempt",
                  (json_int_t)r->book.attempt, "layout", spec_format(spec, &r->book.way.spec),
                  "step", (json_int_t)(step >= 0 ? step : r->book.best_step));

    if (o && more)
        json_object_update(o, more);
    json_decref(more);
    if (!o)
        return;
    if (r->voice->event)
        r->voice->event(r->voice->ctx, o);
    if (r->webhook && is_bad_news(event)) {
        json_t *copy = json_copy(o);

        json_object_set_new(copy, "job", json_string(r->job->name));
        webhook_post(r->webhook, copy);
        json_decref(copy);
    }
    events_add(r->events, o, &ignored);
}

void run_finish(struct run *r, enum run_state final, tp_status result, const char *text)
{
    r->over = true;
    r->result = result;
    r->book.steps = final == RUN_DONE ? r->job->steps : 0;
    snprintf(r->result_text, sizeof r->result_text, "%s", text);
    text_clean(r->result_text);
    snprintf(r->book.reason, sizeof r->book.reason, "%.*s", RUN_RECORD_TEXT_MAX - 1,
             r->result_text);
    text_clean(r->book.reason);
    run_event(r, final == RUN_FAILED ? "failed" : run_state_name(final),
              json_pack("{s:s}", "reason", r->result_text));
    if (run_transition(r, final, "final")) {
        r->result = r->err.status;
        snprintf(r->result_text, sizeof r->result_text, "%s", r->err.msg);
    }
}
