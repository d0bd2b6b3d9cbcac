/* orchestrator/backend/slurm/slurm_query.c - see orchestrator/backend/slurm/slurm_run.h: asks Slurm
 * every slurm.poll about the allocation and its nodes, and acts on the answers. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/clock.h"
#include "orchestrator/backend/slurm/slurm_run.h"

static const double QUEUE_POLL_S = 1, PATIENCE_S = 120;
static const double GONE_S = 5; /* an allocation that was held is gone when Slurm says so for this
                                   time: its controller may have just been started */

double slurm_left(const struct slurm *s)
{
    const struct slurm_allocation *a = &s->allocation;
    const struct slurm_query *q = &s->query;
    double left = q->view.left - (clock_seconds() - q->seen_at);

    /* a job that does not run any more has no end before which to save */
    return a->stage != SLURM_STAGE_HELD || !q->runs || q->view.left < 0 ? -1 : left > 0 ? left : 0;
}

static tp_status ask_view(struct slurm *s)
{
    struct arena arena = { 0 };
    struct job_words words;
    tp_status st;

    s->query.asked_about = s->allocation.job;
    s->query.asked_at = clock_seconds();
    slurm_view_words(&words, s->allocation.job, &arena);
    st = slurm_start(s, SLURM_COMMAND_VIEW, &words, PATIENCE_S);
    arena_free(&arena);
    return st;
}

void slurm_look(void *state, bool first)
{
    struct slurm *s = state;

    s->query.next_look = 0;
    if (first)
        s->query.must_look = s->allocation.stage == SLURM_STAGE_HELD;
}

void slurm_query_soon(struct slurm *s)
{
    if (s->query.next_look > clock_seconds() + QUEUE_POLL_S)
        s->query.next_look = clock_seconds() + QUEUE_POLL_S;
}

void slurm_query_forget(struct slurm *s)
{
    free(s->query.list);
    s->query.list = NULL;
    s->query.must_look = false;
    s->query.gone_since = 0;
}

tp_status slurm_query_tick(struct slurm *s)
{
    if (!s->allocation.job || clock_seconds() < s->query.next_look ||
        slurm_is_running(s, SLURM_COMMAND_VIEW) || slurm_is_running(s, SLURM_COMMAND_HOSTS) ||
        slurm_is_running(s, SLURM_COMMAND_STATES))
        return TP_OK;
    return ask_view(s);
}

/* scontrol lists the names of the nodes, sinfo their states. */
static tp_status ask_nodes(struct slurm *s, enum slurm_command what)
{
    struct arena arena = { 0 };
    struct job_words words;
    char *list = s->query.list;
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
    const struct slurm_allocation *a = &s->allocation;
    struct slurm_query *q = &s->query;
    const char *state = q->view.state;
    bool requeued;
    tp_status st;

    q->runs = slurm_state_runs(state);
    slurm_pause_see(s);
    if (s->ending.requeued)
        return TP_OK; /* after the attempt has ended, the requeued job continues */
    if (slurm_state_waits(state) || (q->runs && !q->view.list[0]))
        return TP_OK;
    if (slurm_state_ends(state) && a->own)
        return TP_OK; /* it is over; its next state says how it ended */
    if (!q->runs) {
        st = slurm_see_requeued(s, &requeued);
        return st || requeued ? st : slurm_allocation_over(s, state);
    }
    if (q->list && strcmp(q->list, q->view.list) == 0 && a->stage == SLURM_STAGE_HELD)
        return ask_nodes(s, SLURM_COMMAND_STATES);
    free(q->list);
    q->list = strdup(q->view.list);
    return q->list ? ask_nodes(s, SLURM_COMMAND_HOSTS)
                   : tp_fail(s->host->err, TP_E_NOMEM, "no memory for the nodes");
}

void slurm_report_no_answer(struct slurm *s, const char *said)
{
    if (!s->query.no_answer)
        slurm_event(s, SLURM_NO_ANSWER, SLURM_UNREACHABLE, said);
    s->query.no_answer = true;
}

/* Replace the view by the one in squeue's text. Takes over the text. False: it has no view. */
static bool set_view(struct slurm_query *q, char *text)
{
    struct slurm_view view;

    if (!slurm_view_read(&view, text, time(NULL))) {
        free(text);
        return false;
    }
    free(q->view_text);
    q->view_text = text;
    q->view = view;
    q->seen_at = clock_seconds();
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
    const struct slurm_allocation *a = &s->allocation;
    struct slurm_query *q = &s->query;
    double now = clock_seconds();

    if (q->gone_since <= 0)
        q->gone_since = now;
    if (a->stage != SLURM_STAGE_HELD || (now - q->gone_since >= GONE_S && !ranks_report(s)))
        return slurm_allocation_over(s, "gone");
    q->next_look = now + QUEUE_POLL_S;
    slurm_report_no_answer(s, "Slurm says that there is no such job");
    return TP_OK;
}

tp_status slurm_viewed(struct slurm *s, int exit_code)
{
    const struct slurm_allocation *a = &s->allocation;
    struct slurm_query *q = &s->query;
    const struct child *c = &s->command[SLURM_COMMAND_VIEW];
    char *text;

    q->next_look =
        clock_seconds() + (a->stage == SLURM_STAGE_HELD ? s->options->poll : QUEUE_POLL_S);
    if (a->job != q->asked_about || run_state_is_final(s->host->record->state))
        return TP_OK; /* it was given back meanwhile */
    if (exit_code == 0 ? !c->last[0] : strstr(c->last, "Invalid job id") != NULL)
        return see_gone(s);
    text = exit_code == 0 ? strdup(c->text) : NULL;
    if (text && set_view(q, text)) {
        if (q->no_answer)
            slurm_event(s, SLURM_ANSWERS, SLURM_REASON_NONE, "");
        q->no_answer = false;
        q->gone_since = 0;
        return use_view(s);
    }
    slurm_report_no_answer(s, c->last);
    return TP_OK;
}

tp_status slurm_named(struct slurm *s, int exit_code)
{
    const struct slurm_allocation *a = &s->allocation;
    struct slurm_query *q = &s->query;
    const struct child *c = &s->command[SLURM_COMMAND_HOSTS];
    bool fresh = slurm_next_is_fresh(s);
    tp_status st;

    if (a->job != q->asked_about || run_state_is_final(s->host->record->state))
        return TP_OK;
    if (exit_code || !c->text) {
        slurm_report_no_answer(s, c->last);
        return TP_OK;
    }
    if ((st = slurm_nodes_set(s, c->text, fresh)))
        return st;
    slurm_allocation_held(s, fresh);
    if (fresh && (st = slurm_next_count(s)))
        return st;
    return run_state_is_final(s->host->record->state) ? TP_OK : ask_nodes(s, SLURM_COMMAND_STATES);
}

tp_status slurm_saw_states(struct slurm *s, int exit_code)
{
    const struct slurm_allocation *a = &s->allocation;
    struct slurm_query *q = &s->query;
    const char *text = s->command[SLURM_COMMAND_STATES].text;

    q->must_look = false;
    if (exit_code || !text || run_state_is_final(s->host->record->state) ||
        a->job != q->asked_about)
        return TP_OK;
    return slurm_nodes_see(s, text);
}
