/* orchestrator/run_slurm_alloc.c - see orchestrator/run_slurm.h: asking for the allocation, looking
 * at it, giving it back. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "orchestrator/backend/slurm/slurm_options.h"
#include "orchestrator/process/process.h"
#include "orchestrator/run_slurm.h"

static const double QUEUE_LOOK_S = 1, AGAIN_S = 10, CHORE_PATIENCE_S = 120;

/* ---- asking for an allocation ---- */

static tp_status request(struct run *r)
{
    struct run_slurm *s = r->slurm;
    struct arena arena = { 0 };
    struct job_words words;
    const struct slurm_request q = { .nodes = s->wanted, .exclude = run_slurm_excluded(r, &arena) };
    tp_status st;

    if (run_now() < s->next_request)
        return TP_OK;
    if ((st = run_slurm_read_request(r)) || r->book.slurm_job) { /* an earlier tp-run's */
        s->stage = SLURM_ASKED;
        return st;
    }
    if (process_find(RUN_SLURM_ENV, r->book.run_id) > 0)
        return TP_OK; /* it is still to say its job's number */
    r->book.slurm_own = true;
    s->over[0] = 0;
    st = run_transition(r, r->book.state, "asking Slurm for nodes");
    if (st == TP_OK)
        st = slurm_salloc(&words, r->job, &q, &arena, &r->err);
    if (st == TP_OK)
        st = run_slurm_start(r, CHORE_ALLOC, &words, 0);
    if (st == TP_OK) {
        s->stage = SLURM_ASKED;
        run_slurm_event(r, "asked", "");
    }
    arena_free(&arena);
    return st;
}

/* salloc has told the number of its job: from now on squeue is asked. */
tp_status run_slurm_read_request(struct run *r)
{
    struct arena arena = { 0 };
    bool granted;
    long id = slurm_allocated(run_slurm_alloc_text(r, CHORE_ALLOC, &arena), &granted);
    tp_status st = TP_OK;

    if (id) {
        r->book.slurm_job = id;
        r->slurm->next_look = 0;
        st = run_transition(r, r->book.state, "Slurm has the request");
    }
    arena_free(&arena);
    return st;
}

tp_status run_slurm_requested(struct run *r, int exit_code)
{
    struct run_slurm *s = r->slurm;
    struct arena arena = { 0 };
    const char *text;
    char why[300];
    tp_status st = r->book.slurm_job ? TP_OK : run_slurm_read_request(r);

    s->next_look = 0;
    if (st || r->book.slurm_job || r->over)
        return st;
    text = run_slurm_alloc_text(r, CHORE_ALLOC, &arena);
    s->stage = SLURM_NONE;
    s->next_request = run_now() + AGAIN_S;
    snprintf(why, sizeof why, "salloc ended with exit code %d: %.200s", exit_code, text);
    for (char *p = why; *p; p++)
        *p = *p == '\n' ? ' ' : *p;
    if (r->book.stop)
        ; /* the plan ends it */
    else if (slurm_is_away(text))
        run_slurm_event(r, "Slurm does not answer", why);
    else
        run_finish(r, RUN_FAILED, TP_E_IO, why);
    arena_free(&arena);
    return TP_OK;
}

/* ---- looking at it ---- */

/* There is no allocation any more. */
static void forget(struct run *r)
{
    struct run_slurm *s = r->slurm;
    char log[PATH_MAX];

    run_slurm_alloc_log(r, CHORE_ALLOC, log);
    unlink(log);
    free(s->list);
    s->list = NULL;
    s->stage = SLURM_NONE;
    s->must_look = s->ending = s->preempted = false;
    s->paused_at = s->next_grow = 0;
    r->book.slurm_job = 0;
    run_slurm_drop_growth(r);
}

static tp_status allocation_over(struct run *r, const char *state)
{
    struct run_slurm *s = r->slurm;

    snprintf(s->over, sizeof s->over, "%.31s", s->remembered ? "" : state);
    s->never_held = r->book.slurm_link != r->book.slurm_job;
    run_slurm_event(r, "over", state);
    forget(r);
    return run_transition(r, r->book.state, "the allocation is over");
}

tp_status run_slurm_ask_view(struct run *r)
{
    struct arena arena = { 0 };
    struct job_words words;
    tp_status st;

    r->slurm->looked_at = r->book.slurm_job;
    r->slurm->asked_at = run_now();
    slurm_view_words(&words, (long)r->book.slurm_job, &arena);
    st = run_slurm_start(r, CHORE_VIEW, &words, CHORE_PATIENCE_S);
    arena_free(&arena);
    return st;
}

static bool is_waiting(const char *state)
{
    static const char *const names[] = { "PENDING",       "CONFIGURING",  "REQUEUED",
                                         "RESV_DEL_HOLD", "SPECIAL_EXIT", "REQUEUE_HOLD",
                                         "REQUEUE_FED" };

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(state, names[i]) == 0)
            return true;
    return false;
}

static bool is_running(const char *state)
{
    return strcmp(state, "RUNNING") == 0 || strcmp(state, "SUSPENDED") == 0 ||
           strcmp(state, "STOPPED") == 0 || strcmp(state, "RESIZING") == 0;
}

/* scontrol writes the nodes out, sinfo tells their states. */
static tp_status ask_nodes(struct run *r, enum slurm_chore what)
{
    struct arena arena = { 0 };
    struct job_words words;
    char *list = r->slurm->list;
    tp_status st;

    if (what == CHORE_HOSTS)
        slurm_words(&words, &arena, "scontrol", "show", "hostnames", list, NULL);
    else
        slurm_words(&words, &arena, "sinfo", "-h", "-N", "-n", list, "-o", "%N|%T", NULL);
    st = run_slurm_start(r, what, &words, CHORE_PATIENCE_S);
    arena_free(&arena);
    return st;
}

static tp_status use_view(struct run *r)
{
    struct run_slurm *s = r->slurm;
    const char *state = s->view.state;

    s->runs = is_running(state);
    run_slurm_see_pause(r);
    if (s->requeued)
        return TP_OK; /* the end of the attempt hands it over */
    if (is_waiting(state) || (is_running(state) && !s->view.list[0]))
        return TP_OK;
    if (strcmp(state, "COMPLETING") == 0 && r->book.slurm_own)
        return TP_OK; /* it is over, and will say in which way */
    if (!is_running(state))
        return allocation_over(r, state);
    if (s->list && strcmp(s->list, s->view.list) == 0 && s->stage == SLURM_HELD)
        return ask_nodes(r, CHORE_STATES);
    free(s->list);
    s->list = strdup(s->view.list);
    return s->list ? ask_nodes(r, CHORE_HOSTS)
                   : tp_fail(&r->err, TP_E_NOMEM, "no memory for the nodes");
}

/* Said once, until it answers again. */
void run_slurm_tell_away(struct run *r, const char *said)
{
    if (!r->slurm->away_told)
        run_slurm_event(r, "Slurm does not answer", said);
    r->slurm->away_told = true;
}

/* The view in squeue's text, which is taken, replaces the one before. false: there is none. */
static bool keep_view(struct run_slurm *s, char *text)
{
    struct slurm_view view;

    if (!slurm_view_read(&view, text, time(NULL))) {
        free(text);
        return false;
    }
    free(s->view_text);
    s->view_text = text;
    s->view = view;
    s->seen_at = run_now();
    return true;
}

tp_status run_slurm_viewed(struct run *r, int exit_code)
{
    struct run_slurm *s = r->slurm;
    const struct child *c = &s->chore[CHORE_VIEW];
    const char *said = child_last_line(c);
    char *text;

    s->next_look =
        run_now() + (s->stage == SLURM_HELD ? slurm_options(r->job)->poll : QUEUE_LOOK_S);
    if (r->book.slurm_job != s->looked_at || r->over) /* it was given back meanwhile */
        return TP_OK;
    if (exit_code == 0 ? !said[0] : strstr(said, "Invalid job id") != NULL)
        return allocation_over(r, "gone");
    text = exit_code == 0 ? strdup(c->text) : NULL;
    if (text && keep_view(s, text)) {
        if (s->away_told)
            run_slurm_event(r, "Slurm answers again", "");
        s->away_told = false;
        return use_view(r);
    }
    run_slurm_tell_away(r, said);
    return TP_OK;
}

/* The nodes' names are known: from the first time on the allocation is held. */
tp_status run_slurm_named(struct run *r, int exit_code)
{
    struct run_slurm *s = r->slurm;
    struct run_record *b = &r->book;
    bool fresh = b->slurm_link != b->slurm_job || b->slurm_restarts != s->view.restarts;
    tp_status st;

    if (b->slurm_job != s->looked_at || r->over)
        return TP_OK;
    if (exit_code || !s->chore[CHORE_HOSTS].text) {
        run_slurm_tell_away(r, child_last_line(&s->chore[CHORE_HOSTS]));
        return TP_OK;
    }
    if ((st = run_slurm_set_nodes(r, s->chore[CHORE_HOSTS].text, fresh)))
        return st;
    if (s->stage != SLURM_HELD) {
        s->stage = SLURM_HELD;
        s->remembered = false;
        s->margin = slurm_options(r->job)->margin;
        if (s->view.left >= 0 && s->view.left < 2 * s->margin)
            s->margin = s->view.left / 2;
        run_slurm_event(r, fresh ? "held" : "found", s->view.list);
    }
    if (fresh && (st = run_slurm_new_link(r)))
        return st;
    return r->over ? TP_OK : ask_nodes(r, CHORE_STATES);
}

/* ---- for the plan ---- */

tp_status run_slurm_ready(struct run *r, bool *ready)
{
    struct run_slurm *s = r->slurm;
    struct run_record *b = &r->book;
    char text[160];

    *ready =
        s->stage == SLURM_HELD && !s->must_look && s->paused_at <= 0 && !run_slurm_is_ending(r);
    if (*ready || s->paused_at > 0)
        return TP_OK;
    time_account_switch(r->ledger, TIME_WAITING, run_now());
    if (s->stage == SLURM_HELD && run_slurm_is_ending(r))
        return run_slurm_hand_over(r, s->why);
    if (s->stage != SLURM_NONE)
        return TP_OK;
    if (s->over[0] && (!b->slurm_own || !slurm_options(r->job)->chain ||
                       strncmp(s->over, "CANCELLED", 9) == 0 || s->never_held)) {
        snprintf(text, sizeof text, "the allocation is over (%s)", s->over);
        run_finish(r, RUN_STOPPED, TP_E_STOPPED, text);
        return TP_OK;
    }
    return request(r);
}

/* ---- the end ---- */

tp_status run_slurm_renew(struct run *r, const char *why)
{
    struct arena arena = { 0 };
    struct job_words words;
    tp_status st;

    run_slurm_event(r, "given back", why);
    slurm_words(&words, &arena, "scancel",
                arena_printf(&arena, "%lld", (long long)r->book.slurm_job), NULL);
    st = run_slurm_start(r, CHORE_CANCEL, &words, CHORE_PATIENCE_S);
    arena_free(&arena);
    forget(r);
    return st ? st : run_transition(r, r->book.state, "the allocation is given back");
}

/* salloc cancels its request when it is told to end; what it had got by then is cancelled too. */
void run_slurm_end_request(struct run *r)
{
    struct child *c = &r->slurm->chore[CHORE_ALLOC];

    if (!c->pid)
        return;
    kill(c->pid, SIGTERM);
    for (int i = 0; i < 100 && process_state(c->pid) != 'Z'; i++)
        usleep(20 * 1000);
    if (!r->book.slurm_job)
        run_slurm_read_request(r);
}
