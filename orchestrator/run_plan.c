/* orchestrator/run_plan.c - see run_state.h: PLAN selects nodes, layout and checkpoint.
 *
 * A restart selects its layout once. Then the checkpoint is verified. Afterwards the planner gives
 * the same answer again, unless nodes were lost or came back. While the plan waits for nodes, each
 * tick asks the planner, which computes nothing until something has changed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/text.h"
#include "orchestrator/plan/planner.h"
#include "orchestrator/plan/root_wait.h"
#include "orchestrator/process/spawn.h"
#include "orchestrator/run_state.h"

struct run_plan {
    struct planner *planner;
    struct plan_candidate layout;           /* selected, or that of the attempt */
    struct checkpoint_selection checkpoint; /* that the attempt begins from */
    bool is_verified;                       /* `checkpoint` is good */
    bool waits;                             /* the plan waits for nodes, and has reported it */
    double not_before;                      /* back-off, 0: none */
    struct root_wait root;
};

tp_status run_plan_open(struct run *r)
{
    struct run_plan *p = r->plan = calloc(1, sizeof *p);

    if (!p || !(p->planner = planner_new(r->job)))
        return tp_fail(&r->err, TP_E_NOMEM, "no memory to plan");
    p->checkpoint.step = -1;
    return TP_OK;
}

void run_plan_close(struct run *r)
{
    if (r->plan)
        planner_free(r->plan->planner);
    free(r->plan);
    r->plan = NULL;
}

const struct plan_candidate *run_selected_layout(const struct run *r)
{
    return &r->plan->layout;
}

const struct checkpoint_selection *run_selected_checkpoint(const struct run *r)
{
    return &r->plan->checkpoint;
}

int64_t run_plans_computed(const struct run *r)
{
    return r->plan ? planner_computed(r->plan->planner) : 0;
}

void run_plan_back_off(struct run *r, double seconds)
{
    r->plan->not_before = clock_seconds() + seconds;
}

void run_plan_restore(struct run *r)
{
    struct run_plan *p = r->plan;
    struct tp_err ignored;

    p->layout.config = r->record.config;
    p->layout.ranks = spec_world(&r->record.config.spec);
    p->checkpoint.step = r->record.resumed_at;
    if (p->checkpoint.step >= 0)
        checkpoint_select(&p->checkpoint, r->job->ckpt, &ignored);
}

void run_plan_converted(struct run *r)
{
    r->plan->checkpoint.spec = r->plan->layout.config.spec;
}

tp_status run_select(const struct run *r, struct plan_candidate *out, int ranks, struct tp_err *err)
{
    return planner_select(r->plan->planner, out, ranks, r->record.resize, &r->record.findings, err);
}

bool run_plan_holds(struct run *r)
{
    struct plan_candidate now;

    return run_select(r, &now, run_free_ranks(r, false), &r->err) == TP_OK &&
           run_config_same(&now.config, &r->plan->layout.config);
}

tp_status run_plan_begin(struct run *r)
{
    const struct attempt_fault *f = &r->attempt.fault;
    tp_status st;

    /* the command has ended by itself; perhaps its nodes were lost */
    if (f->kind == FAULT_EXIT || f->kind == FAULT_SUPERVISOR)
        backend_look(&r->backend, true);
    run_watch_forget(r);
    attempt_forget(&r->attempt, !r->record.open);
    run_time(r, TIME_PLANNING);
    run_convert_reset(r);
    r->plan->is_verified = r->plan->waits = false;
    st = run_transition(r, RUN_PLAN, "intent");
    return st ? st : run_plan_tick(r);
}

/* ---- what the plan waits for ---- */

/* No layout fits any nodes. If the last attempt has shown that, its message says how. */
static void fail_without_layout(struct run *r)
{
    const struct run_record *b = &r->record;
    bool full =
        strcmp(b->fault_reason, event_reason_name(REASON_GPU_MEMORY)) == 0 && b->fault_seconds <= 0;
    char text[TP_ERR_MAX];

    snprintf(text, sizeof text, "%.500s%s%.450s", r->err.msg, full ? "; the last attempt: " : "",
             full ? b->fault : "");
    run_finish(r, RUN_FAILED, TP_E_LAYOUT, event_reason_name(REASON_NO_LAYOUT), text);
}

/* No layout fits the usable nodes: wait for nodes, unless none is missing. */
static tp_status wait_for_nodes(struct run *r)
{
    if (run_usable_nodes(r) == r->nodes.n) {
        fail_without_layout(r);
        return TP_OK;
    }
    if (!r->plan->waits)
        run_event(r, EVENT_PLAN, REASON_NO_LAYOUT, text_clean(r->err.msg),
                  json_pack("{s:s,s:i}", "result", event_result_name(RESULT_WAITING_FOR_NODES),
                            "ranks", run_free_ranks(r, false)));
    r->plan->waits = true;
    run_time(r, TIME_WAITING);
    return TP_OK;
}

bool run_plan_waits_for_root(struct run *r)
{
    struct tp_err who;
    bool report;

    if (!run_root_is_folder(r) ||
        !root_wait_is_locked(&r->plan->root, r->job->ckpt, clock_seconds(), &report, &who))
        return false;
    if (report)
        run_event(r, EVENT_PLAN, REASON_ROOT_LOCKED, text_clean(who.msg),
                  json_pack("{s:s}", "result", event_result_name(RESULT_WAITING_FOR_ROOT)));
    return true;
}

/* Whether the plan has to wait before it can begin. */
static bool has_to_wait(struct run *r)
{
    struct run_plan *p = r->plan;

    if (p->not_before <= clock_seconds()) {
        p->not_before = 0;
        if (!run_plan_waits_for_root(r))
            return false;
    }
    run_time(r, TIME_WAITING);
    return true;
}

/* ---- the checkpoint ---- */

static tp_status verify(struct run *r)
{
    char *argv[] = { (char *)(uintptr_t)r->setup->self, "check", r->plan->checkpoint.dir, NULL };

    return run_helper_start(r, HELPER_VERIFY, argv, "/dev/null");
}

/* *ready: a good checkpoint is selected, or there has never been a checkpoint. */
static tp_status select_checkpoint(struct run *r, bool *ready)
{
    struct run_plan *p = r->plan;
    char text[TP_ERR_MAX];
    tp_status st;

    *ready = true;
    if (p->is_verified)
        return TP_OK;
    p->checkpoint.step = -1;
    if (r->job->checkpoints != JOB_CKPT_TP)
        return TP_OK;
    st = checkpoint_select(&p->checkpoint, r->job->ckpt, &r->err);
    if (st == TP_E_IO && run_root_is_in_store(r)) {
        *ready = false;
        return run_root_failed(r, r->err.msg);
    }
    if (st)
        return st;
    if (p->checkpoint.step >= 0) {
        *ready = false;
        return verify(r);
    }
    if (!p->checkpoint.any_ever && r->record.saved < 0)
        return TP_OK;
    *ready = false;
    snprintf(text, sizeof text,
             "%.500s: has checkpoints, but none is intact; to start again from step 0, move the "
             "root away",
             r->job->ckpt);
    run_finish(r, RUN_FAILED, TP_E_CORRUPT, event_reason_name(REASON_NO_GOOD_CHECKPOINT), text);
    return TP_OK;
}

/* tp-run check was killed (128 and more), perhaps because the host has too little memory, or could
 * not be executed. That says nothing about the checkpoint. */
static tp_status check_failed(struct run *r, int exit_code)
{
    const struct attempt_fault f =
        exit_code >= 128
            ? attempt_fault(FAULT_RESHARD, REASON_CHECK_FAILED,
                            "tp-run check, which verifies the checkpoint, was killed by signal %d",
                            exit_code - 128)
            : attempt_fault(FAULT_RESHARD, REASON_CHECK_FAILED,
                            "tp-run check, which verifies the checkpoint, could not be executed "
                            "(exit code %d)",
                            exit_code);

    return run_retry(r, &f, "");
}

tp_status run_plan_verified(struct run *r, int exit_code, double seconds)
{
    struct run_plan *p = r->plan;
    bool good = exit_code == 0;
    tp_status st = TP_OK;

    if (!good && exit_code != tp_exit_code(TP_E_NO) && run_root_is_in_store(r))
        return run_root_failed(r, "tp-run check could not read the checkpoint from the store");
    if (exit_code >= SPAWN_NOT_EXECUTED)
        return check_failed(r, exit_code);
    p->is_verified = good;
    if (!good)
        st = run_bad_checkpoint(r, REASON_CHECKPOINT_DAMAGED, "it does not verify");
    else if (seconds > 0 && p->checkpoint.bytes > 0)
        r->record.read_rate = (double)p->checkpoint.bytes / seconds;
    return st ? st : run_plan_tick(r);
}

/* Count a failure of the selected checkpoint. Returns the number of failures. */
static int64_t count_failure(struct run_record *b, int64_t step, int *at)
{
    int i = 0;

    while (i < b->n_bad && b->bad[i].step != step)
        i++;
    if (i == b->n_bad) {
        i = b->n_bad < RUN_RECORD_BAD_MAX ? b->n_bad++ : 0;
        b->bad[i].step = step;
        b->bad[i].fails = 0;
    }
    *at = i;
    return ++b->bad[i].fails;
}

tp_status run_bad_checkpoint(struct run *r, enum event_reason reason, const char *message)
{
    const struct checkpoint_selection *c = &r->plan->checkpoint;
    struct run_record *b = &r->record;
    char to[PATH_MAX];
    int at;

    if (count_failure(b, c->step, &at) < 2)
        return run_transition(r, b->state, "a checkpoint failed once");
    if (run_transition(r, b->state, "quarantine") ||
        checkpoint_quarantine(to, c, r->job->ckpt, &r->err))
        return r->err.status;
    b->bad[at] = b->bad[--b->n_bad];
    run_event(r, EVENT_QUARANTINE, reason, message,
              json_pack("{s:I,s:s}", "step", (json_int_t)c->step, "to", text_clean(to)));
    return TP_OK;
}

/* ---- the plan ---- */

static tp_status finish_plan(struct run *r)
{
    const struct run_plan *p = r->plan;
    char spec[SPEC_TEXT_MAX];

    run_event(r, EVENT_PLAN, REASON_NONE, NULL,
              json_pack("{s:s,s:s,s:i,s:i,s:I}", "result", event_result_name(RESULT_LAUNCH),
                        "layout", spec_format(spec, &p->layout.config.spec), "ranks",
                        p->layout.ranks, "free_ranks", run_free_ranks(r, false), "checkpoint",
                        (json_int_t)p->checkpoint.step));
    return run_convert_begin(r);
}

tp_status run_plan_stop(struct run *r)
{
    run_finish(r, RUN_STOPPED, TP_E_STOPPED, event_reason_name(REASON_NOT_STARTED),
               "stopped before it was started");
    return TP_OK;
}

tp_status run_plan_tick(struct run *r)
{
    struct run_plan *p = r->plan;
    bool ready, plan;
    tp_status st;

    if (run_helper_runs(r))
        return TP_OK;
    if (r->record.stop)
        return run_plan_stop(r);
    if (has_to_wait(r))
        return TP_OK;
    if ((st = run_root_claim(r, false)))
        return st;
    if ((st = backend_ready(&r->backend, &ready)) || r->end.over)
        return st;
    if (!ready) {
        run_time(r, TIME_WAITING);
        return TP_OK;
    }
    st = run_select(r, &p->layout, run_free_ranks(r, false), &r->err);
    if (backend_wants_nodes(&r->backend, run_usable_nodes(r), st != TP_E_LAYOUT))
        return backend_hand_over(&r->backend, NULL, &plan);
    if (st == TP_E_LAYOUT && run_readmit_nodes(r))
        return run_plan_tick(r);
    if (st == TP_E_IO && r->job->layouts.config && r->record.attempt > 0)
        return run_root_failed(r, r->err.msg);
    if (st)
        return st == TP_E_LAYOUT ? wait_for_nodes(r) : st;
    run_time(r, TIME_PLANNING);
    st = select_checkpoint(r, &ready);
    return st || !ready || r->end.over ? st : finish_plan(r);
}
