/* orchestrator/backend/slurm/slurm_allocation.c - see orchestrator/backend/slurm/slurm_run.h:
 * requests the allocation, uses it until it is over, and gives it back. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "orchestrator/backend/slurm/slurm_run.h"
#include "orchestrator/process/process.h"

static const double AGAIN_S = 10, PATIENCE_S = 120;

void slurm_allocation_read(struct slurm *s, const json_t *json, bool is_old)
{
    struct slurm_allocation *a = &s->allocation;

    a->job = (long)json_integer_value(json_object_get(json, is_old ? "slurm_job" : "job"));
    a->own = json_is_true(json_object_get(json, is_old ? "slurm_own" : "own"));
}

/* ---- requesting it ---- */

/* Once salloc has printed the number of its job, ask squeue about it. */
static tp_status read_request(struct slurm *s)
{
    struct arena arena = { 0 };
    bool granted;
    long job = slurm_allocated(slurm_salloc_text(s, SLURM_COMMAND_ALLOC, &arena), &granted);
    tp_status st = TP_OK;

    if (job) {
        s->allocation.job = job;
        slurm_look(s, false);
        st = s->host->commit(s->host->run, "Slurm has the request");
    }
    arena_free(&arena);
    return st;
}

void slurm_allocation_begin(struct slurm *s)
{
    struct slurm_allocation *a = &s->allocation;
    struct arena arena = { 0 };
    bool granted;

    if (s->inside && !(a->own && a->job)) { /* replaces the job of an earlier batch job */
        a->job = s->inside;
        a->own = false;
    } else if (!s->inside && !a->own) {
        a->job = 0;
    }
    if (s->next.job == s->inside)
        slurm_next_set(s, 0); /* the next job is this one */
    if (!a->job) {            /* an earlier tp-run may have died right after its request */
        a->job = slurm_allocated(slurm_salloc_text(s, SLURM_COMMAND_ALLOC, &arena), &granted);
        a->own = a->own || a->job;
    }
    a->stage = a->job ? SLURM_STAGE_ASKED : SLURM_STAGE_NONE;
    a->remembered = a->own;
    arena_free(&arena);
}

static tp_status request(struct slurm *s)
{
    struct slurm_allocation *a = &s->allocation;
    struct arena arena = { 0 };
    struct job_words words;
    struct slurm_request q = { .nodes = a->wanted };
    tp_status st;

    if (clock_seconds() < a->next_request)
        return TP_OK;
    if ((st = read_request(s)) || a->job) { /* the request of an earlier tp-run */
        a->stage = SLURM_STAGE_ASKED;
        return st;
    }
    if (process_find(SLURM_SALLOC_ENV, s->host->record->run_id) > 0)
        return TP_OK; /* an earlier tp-run's salloc, which has not printed its job's number yet */
    a->own = true;
    a->over[0] = 0;
    q.exclude = slurm_nodes_excluded(s, &arena);
    st = s->host->commit(s->host->run, "asking Slurm for nodes");
    if (st == TP_OK)
        st = slurm_salloc(&words, s->host->job, &q, &arena, s->host->err);
    if (st == TP_OK)
        st = slurm_start(s, SLURM_COMMAND_ALLOC, &words, 0);
    if (st == TP_OK) {
        a->stage = SLURM_STAGE_ASKED;
        slurm_event(s, SLURM_ASKED, SLURM_REASON_NONE, "");
    }
    arena_free(&arena);
    return st;
}

tp_status slurm_requested(struct slurm *s, int exit_code)
{
    struct slurm_allocation *a = &s->allocation;
    struct arena arena = { 0 };
    const char *text;
    char why[300];
    tp_status st = a->job ? TP_OK : read_request(s);

    slurm_look(s, false);
    if (st || a->job || run_state_is_final(s->host->record->state))
        return st;
    text = slurm_salloc_text(s, SLURM_COMMAND_ALLOC, &arena);
    a->stage = SLURM_STAGE_NONE;
    a->next_request = clock_seconds() + AGAIN_S;
    snprintf(why, sizeof why, "salloc ended with exit code %d: %.200s", exit_code, text);
    for (char *p = why; *p; p++)
        *p = *p == '\n' ? ' ' : *p;
    if (s->host->record->stop)
        ; /* slurm_ready ends the run */
    else if (slurm_is_unreachable(text))
        slurm_event(s, SLURM_NO_ANSWER, SLURM_UNREACHABLE, why);
    else
        slurm_finish(s, RUN_FAILED, TP_E_IO, SLURM_REFUSED, why);
    arena_free(&arena);
    return TP_OK;
}

/* ---- having it ---- */

/* Forget the allocation, because it is over. */
static void forget(struct slurm *s)
{
    struct slurm_allocation *a = &s->allocation;
    char log[PATH_MAX];

    slurm_salloc_log(s, SLURM_COMMAND_ALLOC, log);
    unlink(log);
    a->stage = SLURM_STAGE_NONE;
    a->job = 0;
    slurm_query_forget(s);
    slurm_ending_forget(s);
    slurm_pause_forget(s);
    slurm_growth_forget(s);
}

tp_status slurm_allocation_over(struct slurm *s, const char *state)
{
    struct slurm_allocation *a = &s->allocation;
    char text[80];

    snprintf(a->over, sizeof a->over, "%.31s", a->remembered ? "" : state);
    snprintf(text, sizeof text, "its state is %.40s", state);
    a->never_held = s->next.held != a->job;
    slurm_event(s, SLURM_OVER, SLURM_ALLOCATION_OVER, text);
    forget(s);
    return s->host->commit(s->host->run, "the allocation is over");
}

void slurm_allocation_held(struct slurm *s, bool fresh)
{
    struct slurm_allocation *a = &s->allocation;

    if (a->stage == SLURM_STAGE_HELD)
        return;
    a->stage = SLURM_STAGE_HELD;
    a->remembered = false;
    slurm_ending_begin(s);
    slurm_event(s, fresh ? SLURM_HELD : SLURM_FOUND, SLURM_REASON_NONE, s->query.view.list);
}

tp_status slurm_allocation_tick(struct slurm *s)
{
    struct slurm_allocation *a = &s->allocation;
    tp_status st = TP_OK;

    if (a->stage == SLURM_STAGE_ASKED && !a->job)
        st = read_request(s);
    return st ? st : slurm_query_tick(s);
}

/* ---- planning ---- */

/* Whether tp-run may request another allocation after one has ended. */
static bool may_follow(const struct slurm *s)
{
    const struct slurm_allocation *a = &s->allocation;

    return !a->over[0] ||
           (a->own && s->options->chain && strncmp(a->over, "CANCELLED", 9) != 0 && !a->never_held);
}

tp_status slurm_ready(void *state, bool *ready)
{
    struct slurm *s = state;
    struct slurm_allocation *a = &s->allocation;
    struct backend_cause cause;
    bool ending = slurm_is_ending(s, &cause), plan;
    char text[160];

    *ready = a->stage == SLURM_STAGE_HELD && !s->query.must_look && !slurm_is_paused(s) && !ending;
    if (*ready && slurm_nodes_unknown(s)) { /* they register soon */
        *ready = false;
        slurm_query_soon(s);
        return TP_OK;
    }
    if (*ready || slurm_is_paused(s))
        return TP_OK;
    if (a->stage == SLURM_STAGE_HELD && ending)
        return slurm_hand_over(s, &cause, &plan);
    if (a->stage != SLURM_STAGE_NONE)
        return TP_OK;
    if (may_follow(s))
        return request(s);
    snprintf(text, sizeof text, "the allocation is over (%s)", a->over);
    slurm_finish(s, RUN_STOPPED, TP_E_STOPPED, SLURM_ALLOCATION_OVER, text);
    return TP_OK;
}

/* ---- giving it back ---- */

tp_status slurm_renew(struct slurm *s, const struct backend_cause *cause)
{
    struct arena arena = { 0 };
    struct job_words words;
    tp_status st;

    s->host->event(s->host->run, "allocation", cause->reason, cause->message,
                   json_pack("{s:s,s:I}", "result", slurm_result_name(SLURM_GIVEN_BACK),
                             "slurm_job", (json_int_t)s->allocation.job));
    slurm_words(&words, &arena, "scancel", arena_printf(&arena, "%ld", s->allocation.job), NULL);
    st = slurm_start(s, SLURM_COMMAND_CANCEL, &words, PATIENCE_S);
    arena_free(&arena);
    forget(s);
    return st ? st : s->host->commit(s->host->run, "the allocation is given back");
}

/* salloc cancels its request when it gets SIGTERM. An allocation that it already has is cancelled
 * later. */
void slurm_end_request(struct slurm *s)
{
    const struct child *c = &s->command[SLURM_COMMAND_ALLOC];

    if (!c->pid)
        return;
    kill(c->pid, SIGTERM);
    for (int i = 0; i < 100 && process_state(c->pid) != 'Z'; i++)
        usleep(20 * 1000);
    if (!s->allocation.job)
        read_request(s);
}
