/* orchestrator/run_diagnose.c - see run_state.h: DIAGNOSE finds out what ended an attempt, and
 * decides what comes next. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/epoch.h"
#include "core/clock.h"
#include "core/text.h"
#include "orchestrator/run_state.h"
#include "orchestrator/watch/log_tail.h"

/* ---- finding out why ---- */

/* Whether a rank's last line says that the checkpoint root is full. */
static bool is_root_full(const struct run *r, const char *line)
{
    return (strstr(line, strerror(ENOSPC)) || strstr(line, strerror(EDQUOT))) &&
           strstr(line, r->job->ckpt);
}

/* The fault that ended the command, from its outcome and the end of its log. */
static struct attempt_fault fault_of_exit(const struct run *r, const char *log)
{
    const struct supervisor_outcome *o = &r->attempt.outcome;
    struct attempt_fault f = r->attempt.fault, g;
    struct log_tail tail;
    char how[64];
    bool killed;

    log_tail_parse(&tail, log, r->backend.table->rank_of_line);
    if (f.kind == FAULT_RANK && o->signal == SIGKILL) /* by tp-run, after the rank */
        snprintf(how, sizeof how, "%.63s", f.message);
    else
        snprintf(how, sizeof how, o->signal ? "signal %d" : "exit code %d",
                 o->signal ? o->signal : o->exit_code);
    killed = tail.rank >= 0 ? tail.end == LOG_TAIL_KILLED : o->signal != 0;
    if (f.kind == FAULT_NONE) {
        f = attempt_fault(FAULT_EXIT, killed ? REASON_COMMAND_KILLED : REASON_COMMAND_FAILED,
                          "the command ended with %s", how);
        f.signal = o->signal;
    }
    if (f.kind != FAULT_RANK && f.kind != FAULT_EXIT)
        return f;
    if (tail.rank >= 0 && tail.rank < r->attempt.world) {
        f.rank = tail.rank;
        f.node = r->attempt.rank[tail.rank].node;
        f.reason = killed ? REASON_RANK_KILLED : REASON_RANK_FAILED;
        if (tail.signal)
            f.signal = tail.signal;
    }
    if (tail.line[0] && !(f.reason == REASON_RANK_KILLED && tail.rank < 0)) {
        g = attempt_fault(f.kind, f.reason, "%s: %.250s", how, text_clean(tail.line));
        memcpy(f.message, g.message, sizeof f.message);
    }
    if (is_root_full(r, tail.line))
        f.reason = REASON_ROOT_FULL;
    else if (run_gpus_are_full(r))
        f.reason = REASON_GPU_MEMORY;
    f.step = run_attempt_step(r);
    return f;
}

static void explain_exit(struct run *r, const char *log)
{
    const struct supervisor_outcome *o = &r->attempt.outcome;
    struct attempt_fault f;

    backend_report_log(&r->backend, log);
    f = fault_of_exit(r, log);
    attempt_set_fault(&r->attempt, &f);
    if (f.kind == FAULT_RANK || f.kind == FAULT_EXIT)
        run_event(r, EVENT_RANK_EXIT, f.reason, f.message,
                  json_pack("{s:i,s:s,s:i,s:i}", "rank", f.rank, "node", f.node ? f.node->name : "",
                            "exit_code", o->exit_code, "signal", o->signal));
}

/* ---- deciding ---- */

/* Another job has claimed the checkpoint root: this one must not continue. */
static bool is_fenced(struct run *r)
{
    struct tp_err ignored;
    int64_t newest = 0;
    char text[200];

    if (r->job->checkpoints != JOB_CKPT_TP || ckpt_epoch(&newest, r->job->ckpt, &ignored) ||
        newest <= r->record.epoch)
        return false;
    snprintf(text, sizeof text, "a newer job (epoch %lld, ours was %lld) owns the checkpoint root",
             (long long)newest, (long long)r->record.epoch);
    run_give_up(r, TP_E_COMM, REASON_NEWER_JOB, text);
    return true;
}

/* Continue on other nodes. */
static tp_status hand_over(struct run *r, const struct backend_cause *cause)
{
    bool plan;
    tp_status st = backend_hand_over(&r->backend, cause, &plan);

    return st || r->end.over || !plan ? st : run_plan_begin(r);
}

/* The ranks have saved and ended although tp-run did not ask for it. *decided: the scheduler asked
 * for it, or has ended the allocation. */
static tp_status after_unasked_save(struct run *r, bool *decided)
{
    struct backend_cause cause;
    enum backend_allocation allocation = backend_after_save(&r->backend, &cause);

    *decided = allocation != BACKEND_ALLOCATION_STAYS;
    if (r->backend.table->after_save)
        r->record.fault_at = 0;
    if (allocation == BACKEND_ALLOCATION_TAKEN)
        return hand_over(r, &cause);
    if (allocation == BACKEND_ALLOCATION_STAYS)
        return TP_OK;
    backend_look(&r->backend, true); /* then the plan knows how the allocation ended */
    return run_plan_begin(r);
}

/* The command was asked to stop and ended before its last step. Programs other than tp-train may
 * report that with any exit code, and torchrun does not pass on that of its ranks. tp-train ends by
 * the signal itself if that comes before it has a handler. */
static bool has_obeyed(const struct run *r)
{
    return run_drain_obeyed(r) &&
           (!r->job->is_tp_train || r->attempt.outcome.signal == run_drain_signal(r)) &&
           r->attempt.fault.kind == FAULT_NONE &&
           !(r->job->steps > 0 && r->record.best_step >= r->job->steps);
}

static void finish_stopped(struct run *r, bool saved)
{
    const struct attempt_fault *f = &r->attempt.fault;
    const int sig = r->loop.stopped_by;
    char text[TP_ERR_MAX], by[32] = "";

    if (sig)
        snprintf(by, sizeof by, " by SIG%s", sigabbrev_np(sig));
    if (saved)
        snprintf(text, sizeof text, "saved and stopped%s", by);
    else if (has_obeyed(r) && !r->job->is_tp_train)
        snprintf(text, sizeof text, "stopped%s; its exit code does not say that it has saved", by);
    else
        snprintf(text, sizeof text, "stopped%s; it had not saved%s%.500s", by,
                 f->kind == FAULT_NONE ? "" : ": ", f->kind == FAULT_NONE ? "" : f->message);
    run_finish(r, RUN_STOPPED, TP_E_STOPPED,
               event_reason_name(saved ? REASON_SAVED : REASON_NOT_SAVED), text);
}

/* The attempt has not done all steps. *decided: it ended on request, or because its nodes are taken
 * away. */
static tp_status decide_if_asked(struct run *r, bool saved, bool *decided)
{
    struct run_record *b = &r->record;
    struct backend_cause cause;
    tp_status st;

    *decided = true;
    if (!b->stop && backend_is_ending(&r->backend, &cause))
        return hand_over(r, &cause);
    if ((saved || has_obeyed(r)) && b->relaunch && !b->stop)
        return run_plan_begin(r);
    if (saved && !b->stop && ((st = after_unasked_save(r, decided)) || *decided))
        return st;
    *decided = saved || b->stop;
    if (*decided)
        finish_stopped(r, saved);
    return TP_OK;
}

static void fail_to_execute(struct run *r)
{
    char text[TP_ERR_MAX];

    snprintf(text, sizeof text, "%.400s: cannot be executed: %s", r->job->command.word[0],
             strerror(r->attempt.outcome.exit_code));
    run_finish(r, RUN_FAILED, TP_E_USAGE, event_reason_name(REASON_COMMAND_NOT_EXECUTABLE), text);
}

/* The program refused its command line before the first step. It accepted it before if only GPUs
 * are missing now. */
static tp_status after_refusal(struct run *r)
{
    struct attempt_fault f = r->attempt.fault;

    if (!run_gpus_are_missing(r, &f))
        return run_give_up(r, TP_E_USAGE, REASON_COMMAND_REFUSED, "the command line is refused");
    attempt_set_fault(&r->attempt, &f);
    return run_start_again(r);
}

static tp_status decide(struct run *r, const char *log)
{
    const struct supervisor_outcome *o = &r->attempt.outcome;
    const struct backend_log said = backend_read_log(&r->backend, log);
    enum attempt_fault_kind kind = r->attempt.fault.kind;
    bool by_itself = kind == FAULT_NONE || kind == FAULT_RANK, decided;
    tp_status st;

    if (by_itself && o->started && o->exit_code == 0 && !o->signal && !said.not_started &&
        !has_obeyed(r)) {
        run_finish(r, RUN_DONE, TP_OK, event_reason_name(REASON_ALL_STEPS_DONE),
                   "all steps are done");
        return TP_OK;
    }
    if (is_fenced(r))
        return TP_OK;
    st = decide_if_asked(r,
                         by_itself && (o->exit_code == tp_exit_code(TP_E_STOPPED) ||
                                       (o->exit_code == 0 && has_obeyed(r))),
                         &decided);
    if (st || decided)
        return st;
    if (!o->started) {
        fail_to_execute(r);
        return TP_OK;
    }
    if (kind == FAULT_NODE)
        r->record.relaunch = false;
    if (kind == FAULT_NONE && run_did_no_step(r) && said.unreachable) {
        backend_report_log(&r->backend, log); /* no fault, so no budget is used */
        return run_plan_begin(r);             /* the plan waits until the scheduler answers */
    }
    explain_exit(r, log);
    if (by_itself && o->exit_code == tp_exit_code(TP_E_USAGE) && !run_outlived_init(r) &&
        run_did_no_step(r))
        return after_refusal(r);
    return run_restart_after_fault(r);
}

/* While ranks save and stop, the loss of a node kills some of them and is no fault at once, because
 * the save may be complete. It was not: the exit code is that of a rank that was killed. */
static void find_lost_node(struct run *r)
{
    const struct attempt *a = &r->attempt;

    for (int i = 0; i < a->world && a->fault.kind == FAULT_NONE; i++) {
        struct node *node = a->rank[i].node;
        struct attempt_fault f;

        if (!node || !node->down)
            continue;
        f = attempt_fault(FAULT_NODE, REASON_NODE_LOST,
                          "node %s was lost before its ranks had saved and ended", node->name);
        f.node = node;
        f.step = run_attempt_step(r);
        attempt_set_fault(&r->attempt, &f);
    }
}

/* Read how the attempt ended, and account for its time. */
static void conclude(struct run *r, bool planned)
{
    const struct supervisor_outcome *o = &r->attempt.outcome;
    struct attempt_fault lost =
        attempt_fault(FAULT_SUPERVISOR, REASON_SUPERVISOR_LOST,
                      "the attempt ended without an outcome (its supervisor was killed)");
    double now = clock_seconds();
    bool fine;

    run_watch_last(r);
    if (!attempt_read_outcome(&r->attempt) && r->attempt.fault.kind == FAULT_NONE)
        attempt_set_fault(&r->attempt, &lost);
    fine = o->started && o->exit_code == 0;
    if (!fine && o->exit_code != tp_exit_code(TP_E_STOPPED))
        find_lost_node(r);
    if (!planned && r->attempt.fault.kind == FAULT_NONE && r->record.fault_at <= 0 && !fine)
        r->record.fault_at = now;
    if (r->record.state != RUN_DRAIN)
        run_time_fault(
            r,
            o->exit_code == 0 || o->exit_code == tp_exit_code(TP_E_STOPPED) ? now : run_saved_at(r),
            now);
}

tp_status run_supervisor_ended(struct run *r)
{
    bool planned = r->record.state == RUN_DRAIN && r->attempt.fault.kind == FAULT_NONE;
    char *log;
    tp_status st;

    supervisor_forget(&r->attempt.supervisor);
    if (run_drain_waits_for_rest(r))
        return r->record.state == RUN_DRAIN
                   ? TP_OK
                   : run_transition(r, RUN_DRAIN, "the supervisor is gone");
    conclude(r, planned);
    st = run_transition(r, RUN_DIAGNOSE, "ended"); /* still open: a takeover decides again */
    r->record.open = false;
    log = log_tail_read(r->attempt.log);
    if (st == TP_OK)
        st = decide(r, log);
    free(log);
    if (r->end.over || r->record.state == RUN_PLAN)
        run_time_flush(r);
    return st;
}
