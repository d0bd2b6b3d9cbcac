/* orchestrator/run_restart.c - see run_state.h: what a fault costs the job: another attempt, a step
 * back, or the end. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/text.h"
#include "orchestrator/run_state.h"
#include "orchestrator/state/restart_budget.h"
#include "orchestrator/watch/log_tail.h"

bool run_did_no_step(const struct run *r)
{
    return r->record.best_step <= r->record.best_at_launch;
}

tp_status run_give_up(struct run *r, tp_status result, enum event_reason reason, const char *why)
{
    char text[TP_ERR_MAX];

    snprintf(text, sizeof text, "%.160s; the last: %.400s (log: %.300s)", why,
             r->attempt.fault.message, r->attempt.log);
    run_finish(r, RUN_FAILED, result, event_reason_name(reason), text);
    return TP_OK;
}

/* Remember the fault for people; what it has cost is known when every rank trains again. */
static void note_fault(struct run *r)
{
    const struct attempt_fault *f = &r->attempt.fault;
    struct run_record *b = &r->record;

    snprintf(b->fault_reason, sizeof b->fault_reason, "%s", event_reason_name(f->reason));
    snprintf(b->fault, sizeof b->fault, "%.*s", RUN_RECORD_TEXT_MAX - 1, f->message);
    text_clean(b->fault);
    b->fault_wall = clock_wall_seconds();
    b->fault_seconds = 0;
    b->fault_steps = 0;
}

tp_status run_start_again(struct run *r)
{
    const struct attempt_fault *f = &r->attempt.fault;
    enum event_reason reason;
    char why[RESTART_BUDGET_TEXT];
    double wait;

    note_fault(r);
    if (!restart_budget_take(&r->record, r->job, clock_seconds(), &reason, why))
        return run_give_up(r, TP_E_COMM, reason, why);
    wait = restart_budget_back_off(&r->record, r->job);
    run_plan_back_off(r, wait);
    run_event(r, EVENT_RESTART, f->reason, f->message,
              json_pack("{s:I,s:f}", "fails_in_row", (json_int_t)r->record.fails_in_row, "backoff",
                        wait));
    return run_plan_begin(r);
}

tp_status run_retry(struct run *r, const struct attempt_fault *f, const char *log)
{
    attempt_set_fault(&r->attempt, f);
    attempt_set_log(&r->attempt, log);
    r->record.fails_in_row++;
    return run_start_again(r);
}

int64_t run_attempt_step(const struct run *r)
{
    return run_monitor(r) ? monitor_best_step(run_monitor(r)) : -1;
}

/* Whether the fault came from outside of the program. */
static bool is_from_outside(const struct attempt_fault *f)
{
    return f->kind == FAULT_NODE || (f->reason == REASON_RANK_KILLED && f->signal == SIGKILL);
}

/* Whether the attempt made progress: it reached a new step; or it trained, although only steps that
 * were done before, because checkpoints are rare. A program that fails at the same step as before
 * makes none: it would fail there again. */
static bool made_progress(struct run *r)
{
    int64_t step = run_attempt_step(r), before = r->record.fault_step;

    r->record.fault_step = step;
    if (r->attempt.fault.reason == REASON_ROOT_FULL)
        return false;
    if (run_outlived_init(r) || !run_did_no_step(r))
        return true;
    return step >= 0 && (step != before || is_from_outside(&r->attempt.fault));
}

/* The loss was not finite: checkpoints after the last good step must not be used. */
static tp_status after_bad_loss(struct run *r)
{
    struct checkpoint_selection c;
    int64_t at = r->attempt.fault.step;

    if (r->job->watch.on_nan == JOB_NAN_STOP)
        return run_give_up(r, TP_E_COMM, REASON_LOSS_NOT_FINITE,
                           "the loss is NaN or infinite, and watch.nan is stop");
    if (r->record.bad_loss_step == at)
        return run_give_up(r, TP_E_COMM, REASON_LOSS_NOT_FINITE_AGAIN,
                           "the loss is NaN or infinite at the same step again");
    r->record.bad_loss_step = at;
    while (r->job->checkpoints == JOB_CKPT_TP &&
           checkpoint_select(&c, r->job->ckpt, &r->err) == TP_OK && c.step >= at) {
        char to[PATH_MAX];

        if (checkpoint_quarantine(to, &c, r->job->ckpt, &r->err))
            return r->err.status;
        run_event(r, EVENT_QUARANTINE, REASON_SAVED_AFTER_BAD_LOSS,
                  "it was saved after the loss was NaN or infinite",
                  json_pack("{s:I,s:s}", "step", (json_int_t)c.step, "to", text_clean(to)));
    }
    return TP_OK;
}

/* Whether the line of the log that explains the end names the checkpoint. */
static bool log_names_checkpoint(const struct run *r)
{
    char *log = log_tail_read(r->attempt.log);
    struct log_tail tail;

    log_tail_parse(&tail, log, r->backend.table->rank_of_line);
    free(log);
    return strstr(tail.line, text_base_name(run_selected_checkpoint(r)->dir)) != NULL;
}

/* Whether the attempt could not load its checkpoint. The exit code alone does not say that: it is
 * the same when a log cannot be written, or the memory is not enough. */
static bool could_not_load(const struct run *r)
{
    return run_attempt_step(r) < 0 && !run_outlived_init(r) &&
           run_selected_checkpoint(r)->step >= 0 && r->attempt.fault.kind == FAULT_EXIT &&
           r->attempt.outcome.exit_code == tp_exit_code(TP_E_CORRUPT) && log_names_checkpoint(r);
}

tp_status run_restart_after_fault(struct run *r)
{
    const struct attempt_fault *f = &r->attempt.fault;
    bool progress = made_progress(r);
    tp_status st = TP_OK;

    if (could_not_load(r) && !run_root_is_in_store(r)) /* perhaps the store did not answer; it
                                                          verified just before */
        st = run_bad_checkpoint(r, REASON_CHECKPOINT_UNREADABLE, "an attempt could not load it");
    if (st == TP_OK && f->kind == FAULT_LOSS)
        st = after_bad_loss(r);
    if (st || r->end.over)
        return st;
    if (progress)
        r->record.fails_in_row = 0;
    else if (f->kind != FAULT_NODE) /* which says nothing about the program */
        r->record.fails_in_row++;
    if (!run_gpus_refuse_layout(r) && run_count_fault(r, f) && run_gpus_is_fault(r, f) &&
        run_usable_nodes(r) > 0)
        r->record.fails_in_row = 0; /* the next start does without this GPU */
    return run_start_again(r);
}
