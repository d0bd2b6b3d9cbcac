/* orchestrator/backend/slurm/slurm_allocation.c - see orchestrator/backend/slurm/slurm_run.h:
 * requests the allocation, checks it every slurm.poll, and gives it back. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "orchestrator/backend/slurm/slurm_run.h"
#include "orchestrator/process/process.h"

static const double QUEUE_POLL_S = 1, AGAIN_S = 10, PATIENCE_S = 120;
static const double GONE_S = 5; /* an allocation that was held is gone when Slurm says so for this
                                   time: its controller may have just been started */

void slurm_allocation_read(struct slurm *s, const json_t *json, bool is_old)
{
    struct slurm_allocation *a = &s->allocation;

    a->job = (long)json_integer_value(json_object_get(json, is_old ? "slurm_job" : "job"));
    a->own = json_is_true(json_object_get(json, is_old ? "slurm_own" : "own"));
}

double slurm_left(const struct slurm *s)
{
    const struct slurm_allocation *a = &s->allocation;
    double left = a->view.left - (clock_seconds() - a->seen_at);

    /* a job that does not run any more has no end before which to save */
    return a->stage != SLURM_STAGE_HELD || !a->runs || a->view.left < 0 ? -1 : left > 0 ? left : 0;
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
        s->allocation.next_look = 0;
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

    a->next_look = 0;
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

/* ---- checking it ---- */

/* Forget the allocation, because it is over. */
static void forget(struct slurm *s)
{
    struct slurm_allocation *a = &s->allocation;
    char log[PATH_MAX];

    slurm_salloc_log(s, SLURM_COMMAND_ALLOC, log);
    unlink(log);
    free(a->list);
    a->list = NULL;
    a->stage = SLURM_STAGE_NONE;
    a->must_look = false;
    a->gone_since = 0;
    a->job = 0;
    slurm_ending_forget(s);
    slurm_pause_forget(s);
    slurm_growth_forget(s);
}

static tp_status allocation_over(struct slurm *s, const char *state)
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

static tp_status ask_view(struct slurm *s)
{
    struct arena arena = { 0 };
    struct job_words words;
    tp_status st;

    s->allocation.asked_about = s->allocation.job;
    s->allocation.asked_at = clock_seconds();
    slurm_view_words(&words, s->allocation.job, &arena);
    st = slurm_start(s, SLURM_COMMAND_VIEW, &words, PATIENCE_S);
    arena_free(&arena);
    return st;
}

void slurm_look(void *state, bool first)
{
    struct slurm *s = state;

    s->allocation.next_look = 0;
    if (first)
        s->allocation.must_look = s->allocation.stage == SLURM_STAGE_HELD;
}

tp_status slurm_allocation_tick(struct slurm *s)
{
    struct slurm_allocation *a = &s->allocation;
    tp_status st = TP_OK;

    if (a->stage == SLURM_STAGE_ASKED && !a->job)
        st = read_request(s);
    if (st == TP_OK && a->job && clock_seconds() >= a->next_look &&
        !slurm_is_running(s, SLURM_COMMAND_VIEW) && !slurm_is_running(s, SLURM_COMMAND_HOSTS) &&
        !slurm_is_running(s, SLURM_COMMAND_STATES))
        st = ask_view(s);
    return st;
}

/* scontrol lists the names of the nodes, sinfo their states. */
static tp_status ask_nodes(struct slurm *s, enum slurm_command what)
{
    struct arena arena = { 0 };
    struct job_words words;
    char *list = s->allocation.list;
    tp_status st;

    if (what == SLURM_COMMAND_HOSTS)
        slurm_words(&words, &arena, "scontrol", "show", "hostnames", list, NULL);
    else
        slurm_words(&words, &arena, "sinfo", "-h", "-N", "-n", list, "-o", "%N|%T", NULL);
    st = slurm_start(s, what, &words, PATIENCE_S);
    arena_free(&arena);
    return st;
}

/* Act on a new view. */
static tp_status use_view(struct slurm *s)
{
    struct slurm_allocation *a = &s->allocation;
    const char *state = a->view.state;

    a->runs = slurm_state_runs(state);
    slurm_pause_see(s);
    if (s->ending.requeued)
        return TP_OK; /* after the attempt has ended, the requeued job continues */
    if (slurm_state_waits(state) || (a->runs && !a->view.list[0]))
        return TP_OK;
    if (strcmp(state, "COMPLETING") == 0 && a->own)
        return TP_OK; /* it is over; its next state says how it ended */
    if (!a->runs)
        return allocation_over(s, state);
    if (a->list && strcmp(a->list, a->view.list) == 0 && a->stage == SLURM_STAGE_HELD)
        return ask_nodes(s, SLURM_COMMAND_STATES);
    free(a->list);
    a->list = strdup(a->view.list);
    return a->list ? ask_nodes(s, SLURM_COMMAND_HOSTS)
                   : tp_fail(s->host->err, TP_E_NOMEM, "no memory for the nodes");
}

void slurm_report_no_answer(struct slurm *s, const char *said)
{
    if (!s->allocation.no_answer)
        slurm_event(s, SLURM_NO_ANSWER, SLURM_UNREACHABLE, said);
    s->allocation.no_answer = true;
}

/* Replace the view by the one in squeue's text. Takes over the text. False: it has no view. */
static bool set_view(struct slurm_allocation *a, char *text)
{
    struct slurm_view view;

    if (!slurm_view_read(&view, text, time(NULL))) {
        free(text);
        return false;
    }
    free(a->view_text);
    a->view_text = text;
    a->view = view;
    a->seen_at = clock_seconds();
    return true;
}

/* Whether ranks of the job report, so that the allocation exists whatever Slurm says. */
static bool ranks_report(const struct slurm *s)
{
    const struct backend_host *h = s->host;

    for (int i = 0; i < h->nodes->n; i++)
        if (h->node_reports(h->run, h->nodes->node[i]))
            return true;
    return false;
}

/* Slurm says that there is no such job. Believe that when nothing contradicts it. */
static tp_status see_gone(struct slurm *s)
{
    struct slurm_allocation *a = &s->allocation;
    double now = clock_seconds();

    if (a->gone_since <= 0)
        a->gone_since = now;
    if (a->stage != SLURM_STAGE_HELD || (now - a->gone_since >= GONE_S && !ranks_report(s)))
        return allocation_over(s, "gone");
    a->next_look = now + QUEUE_POLL_S;
    slurm_report_no_answer(s, "Slurm says that there is no such job");
    return TP_OK;
}

tp_status slurm_viewed(struct slurm *s, int exit_code)
{
    struct slurm_allocation *a = &s->allocation;
    const struct child *c = &s->command[SLURM_COMMAND_VIEW];
    char *text;

    a->next_look =
        clock_seconds() + (a->stage == SLURM_STAGE_HELD ? s->options->poll : QUEUE_POLL_S);
    if (a->job != a->asked_about || run_state_is_final(s->host->record->state))
        return TP_OK; /* it was given back meanwhile */
    if (exit_code == 0 ? !c->last[0] : strstr(c->last, "Invalid job id") != NULL)
        return see_gone(s);
    text = exit_code == 0 ? strdup(c->text) : NULL;
    if (text && set_view(a, text)) {
        if (a->no_answer)
            slurm_event(s, SLURM_ANSWERS, SLURM_REASON_NONE, "");
        a->no_answer = false;
        a->gone_since = 0;
        return use_view(s);
    }
    slurm_report_no_answer(s, c->last);
    return TP_OK;
}

/* The names of the nodes are known. From the first time on, the allocation is held. */
tp_status slurm_named(struct slurm *s, int exit_code)
{
    struct slurm_allocation *a = &s->allocation;
    const struct child *c = &s->command[SLURM_COMMAND_HOSTS];
    bool fresh = slurm_next_is_fresh(s);
    tp_status st;

    if (a->job != a->asked_about || run_state_is_final(s->host->record->state))
        return TP_OK;
    if (exit_code || !c->text) {
        slurm_report_no_answer(s, c->last);
        return TP_OK;
    }
    if ((st = slurm_nodes_set(s, c->text, fresh)))
        return st;
    if (a->stage != SLURM_STAGE_HELD) {
        a->stage = SLURM_STAGE_HELD;
        a->remembered = false;
        slurm_ending_begin(s);
        slurm_event(s, fresh ? SLURM_HELD : SLURM_FOUND, SLURM_REASON_NONE, a->view.list);
    }
    if (fresh && (st = slurm_next_count(s)))
        return st;
    return run_state_is_final(s->host->record->state) ? TP_OK : ask_nodes(s, SLURM_COMMAND_STATES);
}

tp_status slurm_saw_states(struct slurm *s, int exit_code)
{
    struct slurm_allocation *a = &s->allocation;
    const char *text = s->command[SLURM_COMMAND_STATES].text;

    a->must_look = false;
    if (exit_code || !text || run_state_is_final(s->host->record->state) ||
        a->job != a->asked_about)
        return TP_OK;
    return slurm_nodes_see(s, text);
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

    *ready = a->stage == SLURM_STAGE_HELD && !a->must_look && !slurm_is_paused(s) && !ending;
    if (*ready && slurm_nodes_unknown(s)) { /* they register soon */
        *ready = false;
        if (a->next_look > clock_seconds() + QUEUE_POLL_S)
            a->next_look = clock_seconds() + QUEUE_POLL_S;
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
