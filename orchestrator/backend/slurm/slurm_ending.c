/* orchestrator/backend/slurm/slurm_ending.c - see orchestrator/backend/slurm/slurm_run.h: the
 * allocation ends, or Slurm takes it away, but the job should continue.
 *
 * When Slurm preempts a job with a grace, it sends SIGTERM to the job's steps at once and ends the
 * job after the grace. The relays forward SIGTERM as "save and stop". A batch job may be requeued
 * because it was preempted, because a node was lost, or by a person. Slurm then ends it as scancel
 * does and starts it again with the same number; squeue shows how often.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "orchestrator/backend/slurm/slurm_run.h"

enum { AGAIN_US = 1000 * 1000 };

static const double PATIENCE_S = 10, LAST_PATIENCE_S = 60;

bool slurm_is_ending(const void *state, struct backend_cause *cause)
{
    const struct slurm *s = state;

    *cause = s->ending.cause;
    return s->ending.ending;
}

void slurm_ending_begin(struct slurm *s)
{
    double left = s->query.view.left;

    s->ending.margin = s->options->margin;
    if (left >= 0 && left < 2 * s->ending.margin)
        s->ending.margin = left / 2;
}

void slurm_ending_forget(struct slurm *s)
{
    s->ending.ending = s->ending.preempted = false;
}

/* From now on, the end of the attempt means that the job continues elsewhere. */
static void end_because(struct slurm *s, const struct backend_cause *cause)
{
    s->ending.ending = true;
    s->ending.cause = *cause;
    s->host->relaunch(s->host->run);
}

tp_status slurm_end_for(struct slurm *s, const struct backend_cause *cause)
{
    end_because(s, cause);
    return s->host->save_and_stop(s->host->run, cause);
}

static bool is_requeued(const struct slurm *s, const struct slurm_view *v)
{
    return s->next.held == s->allocation.job && v->restarts > s->next.restarts;
}

/* The same of the batch job in which tp-run runs. */
static bool is_requeued_here(const struct slurm *s, const struct slurm_view *v)
{
    return s->inside == s->allocation.job && is_requeued(s, v);
}

/* Whether Slurm takes the nodes away, and why. */
static bool is_taken(struct backend_cause *cause, const struct slurm *s, const struct slurm_view *v)
{
    if (v->preempted)
        *cause = slurm_cause(SLURM_PREEMPTED, "Slurm preempts the job");
    else if (is_requeued(s, v))
        *cause = slurm_cause(SLURM_REQUEUED, "Slurm requeues the job");
    else if (strcmp(v->reason, "TimeLimit") == 0 ||
             (slurm_state_is_active(v->state) && v->left >= 0 && v->left <= s->options->margin))
        *cause = slurm_cause(SLURM_JOB_ENDS, "Slurm ends the job");
    else
        return false;
    return true;
}

static void report_taken(struct slurm *s, const struct backend_cause *cause)
{
    s->host->event(s->host->run, "allocation", cause->reason, cause->message,
                   json_pack("{s:s,s:I}", "result", slurm_result_name(SLURM_TAKEN), "slurm_job",
                             (json_int_t)s->allocation.job));
}

tp_status slurm_see_requeued(struct slurm *s, bool *requeued)
{
    const struct backend_cause cause = slurm_cause(SLURM_REQUEUED, "Slurm requeues the job");

    *requeued = is_requeued_here(s, &s->query.view);
    if (!*requeued)
        return TP_OK;
    s->ending.requeued = true;
    report_taken(s, &cause);
    return slurm_end_for(s, &cause);
}

/* Ask Slurm for the allocation's state and wait for the answer. False: there is none. */
static bool ask_view(struct slurm_view *view, const struct slurm *s)
{
    struct arena arena = { 0 };
    struct job_words words;
    struct tp_err ignored;
    char *text;
    bool answered;

    slurm_view_words(&words, s->allocation.job, &arena);
    answered = slurm_ask(&text, &words, &s->client, PATIENCE_S, &arena, &ignored) == TP_OK &&
               slurm_view_read(view, text, time(NULL));
    arena_free(&arena);
    return answered;
}

/* What Slurm does with the allocation. BACKEND_ALLOCATION_STAYS also if there is no answer. */
static enum backend_allocation ask_slurm(struct slurm *s)
{
    struct slurm_view view;
    struct backend_cause cause;
    enum backend_allocation allocation = BACKEND_ALLOCATION_STAYS;
    const bool is_known = s->ending.requeued; /* slurm_see_requeued has reported it */

    if (!s->allocation.job)
        return BACKEND_ALLOCATION_STAYS;
    if (ask_view(&view, s)) {
        s->ending.preempted = view.preempted;
        s->ending.requeued = is_requeued_here(s, &view);
        if (is_taken(&cause, s, &view)) {
            end_because(s, &cause);
            if (!is_known)
                report_taken(s, &cause);
        } else if (!slurm_state_is_active(view.state)) {
            allocation = BACKEND_ALLOCATION_OVER;
        }
    }
    return s->ending.ending ? BACKEND_ALLOCATION_TAKEN : allocation;
}

enum backend_allocation slurm_after_save(void *state, struct backend_cause *cause)
{
    struct slurm *s = state;
    enum backend_allocation allocation = ask_slurm(s);

    *cause = s->ending.cause;
    return allocation;
}

bool slurm_explains_sigterm(void *state, struct backend_cause *cause)
{
    struct slurm *s = state;

    return s->inside && !s->ending.waits && s->inside == s->allocation.job &&
           slurm_after_save(s, cause) == BACKEND_ALLOCATION_TAKEN;
}

static tp_status see_preempted(struct slurm *s)
{
    const struct backend_cause cause = slurm_cause(SLURM_PREEMPTED, "Slurm preempts the job");

    if (s->ending.ending || !s->query.view.preempted)
        return TP_OK;
    s->ending.preempted = true;
    report_taken(s, &cause);
    return slurm_end_for(s, &cause);
}

static tp_status see_wall_time(struct slurm *s)
{
    double left = slurm_left(s);
    struct backend_cause cause = slurm_cause(SLURM_WALL_TIME, "the wall time ends"), said = cause;
    char text[80];

    if (left < 0 || s->ending.ending || left > s->ending.margin)
        return TP_OK;
    snprintf(text, sizeof text, "%.0f s of the wall time are left", left);
    end_because(s, &cause);
    slurm_event(s, SLURM_ENDS, SLURM_WALL_TIME, text);
    said.message = text;
    return s->host->save_and_stop(s->host->run, &said);
}

tp_status slurm_ending_tick(struct slurm *s)
{
    tp_status st = see_preempted(s);

    if (st == TP_OK && slurm_left(s) >= 0)
        st = slurm_next_tick(s);
    return st ? st : see_wall_time(s);
}

/* ---- after that attempt has ended ---- */

/* The last answer decides which job continues: it is waited for as long as half of the wall time
 * that is left, because a busy controller needs many seconds. */
static double last_patience(const struct slurm *s)
{
    const double half = slurm_left(s) / 2;

    return half < PATIENCE_S ? PATIENCE_S : half < LAST_PATIENCE_S ? half : LAST_PATIENCE_S;
}

/* Whether Slurm has requeued the batch job although scontrol failed, because its answer was lost.
 * This is asked until there is an answer: to submit another batch job then would make two
 * continue. */
static bool was_requeued(const struct slurm *s, double until)
{
    struct slurm_view view;

    while (!ask_view(&view, s)) {
        if (clock_seconds() >= until)
            return false;
        usleep(AGAIN_US);
    }
    return is_requeued_here(s, &view);
}

/* Ask Slurm to requeue the batch job of tp-run. False: it refuses. */
static bool ask_requeue(const struct slurm *s, double until, struct tp_err *err)
{
    struct arena arena = { 0 };
    struct job_words words;
    bool requeued;

    slurm_words(&words, &arena, "scontrol", "requeue", arena_printf(&arena, "%ld", s->inside),
                NULL);
    requeued = slurm_ask(NULL, &words, &s->client, last_patience(s), &arena, err) == TP_OK ||
               was_requeued(s, until);
    arena_free(&arena);
    return requeued;
}

/* The same, again while Slurm does not answer. */
static bool requeue(struct slurm *s)
{
    const double until = clock_seconds() + last_patience(s);
    struct tp_err err = { 0 };

    do {
        s->ending.requeued = ask_requeue(s, until, &err);
    } while (!s->ending.requeued && slurm_again(err.msg, until));
    if (!s->ending.requeued) /* the next batch job is submitted instead */
        slurm_event(s, SLURM_CANNOT_REQUEUE, SLURM_REASON_NONE, err.msg);
    return s->ending.requeued;
}

/* Submit the next batch job, again while Slurm does not answer. */
static tp_status submit_next(struct slurm *s)
{
    const double until = clock_seconds() + last_patience(s);
    tp_status st;

    do {
        st = slurm_next_submit_now(s);
    } while (st == TP_OK && !s->next.job && slurm_again(s->next.why, until));
    return st;
}

/* The requeued batch job continues, so the next job that was submitted is cancelled. */
static void leave_to_requeued(struct slurm *s)
{
    struct tp_err ignored;
    char text[120];

    if (s->next.job)
        slurm_cancel(&s->client, s->next.job, PATIENCE_S, &ignored);
    slurm_next_set(s, s->inside);
    snprintf(text, sizeof text, "Slurm requeues job %ld, which continues", s->inside);
    slurm_finish(s, RUN_STOPPED, TP_E_STOPPED, SLURM_REQUEUED, text);
}

/* A preempted batch job without chain continues only if Slurm requeues it. */
static bool only_slurm_continues(struct slurm *s)
{
    return s->inside == s->allocation.job && !s->options->chain && s->ending.preempted;
}

/* In a batch job: end, because the next batch job continues. */
static tp_status leave_to_next(struct slurm *s, const struct backend_cause *cause)
{
    char text[400];
    tp_status st = TP_OK;

    slurm_next_check(s);
    if (!s->allocation.own && s->options->chain && !s->next.job)
        st = submit_next(s);
    if (st)
        return st;
    if (s->next.job)
        snprintf(text, sizeof text, "%.150s: Slurm job %ld continues", cause->message, s->next.job);
    else
        snprintf(text, sizeof text, "%.150s, and no other job continues%s%.190s", cause->message,
                 s->next.why[0] ? ": " : "", s->next.why);
    slurm_finish(s, RUN_STOPPED, TP_E_STOPPED,
                 s->next.job ? SLURM_JOB_CONTINUES : SLURM_NO_NEXT_JOB, text);
    return TP_OK;
}

tp_status slurm_hand_over(void *state, const struct backend_cause *cause, bool *plan)
{
    struct slurm *s = state;
    const struct backend_cause few =
        slurm_cause(SLURM_TOO_FEW_NODES, "too few nodes of the allocation remain");

    *plan = false;
    if (!cause)
        cause = &few;
    if (s->ending.requeued) {
        leave_to_requeued(s);
        return TP_OK;
    }
    if (s->ending.waits)
        return TP_OK;
    if (only_slurm_continues(s)) {
        s->ending.waits = s->ending.ending = *plan = true;
        slurm_event(s, SLURM_WAITS, SLURM_PREEMPTED,
                    "it is preempted, and continues if Slurm requeues it");
        return TP_OK;
    }
    s->ending.ending = false;
    if (s->allocation.own && s->options->chain) {
        *plan = true;
        return slurm_renew(s, cause);
    }
    if (s->inside == s->allocation.job && s->options->chain == SLURM_CHAIN_REQUEUE && requeue(s)) {
        leave_to_requeued(s);
        return TP_OK;
    }
    return leave_to_next(s, cause);
}
