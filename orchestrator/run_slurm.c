/* orchestrator/run_slurm.c - see orchestrator/run_slurm.h: the allocation. */
#include "orchestrator/run_slurm.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/file.h"
#include "orchestrator/process.h"

#define ALLOC_ENV "TP_SALLOC_ID" /* in salloc: of which run */

static const double QUEUE_LOOK_S = 1, AGAIN_S = 10, CHORE_PATIENCE_S = 120;

/* ---- chores ---- */

static void alloc_log(const struct run *r, enum slurm_chore what, char path[PATH_MAX])
{
    snprintf(path, PATH_MAX, "%.4000s/%s.log", r->job->state,
             what == CHORE_GROW ? "grow" : "salloc");
}

bool run_slurm_busy(const struct run *r, enum slurm_chore what)
{
    return r->slurm->chore[what].pid != 0;
}

tp_status run_slurm_start(struct run *r, enum slurm_chore what, const struct job_words *words,
                          double patience_s)
{
    struct child *c = &r->slurm->chore[what];
    bool is_alloc = what == CHORE_ALLOC || what == CHORE_GROW;
    char log[PATH_MAX];
    tp_status st;

    if (c->pid)
        return TP_OK;
    if (words->n == 0)
        return tp_fail(&r->err, TP_E_NOMEM, "no memory for a command of Slurm");
    alloc_log(r, what, log);
    if (is_alloc)
        unlink(log);
    if (what == CHORE_ALLOC)
        setenv(ALLOC_ENV, r->book.run_id, 1);
    st = child_start(c, words->word, r->job->state, is_alloc ? log : NULL, &r->err);
    unsetenv(ALLOC_ENV);
    c->until = patience_s > 0 ? run_now() + patience_s : 0;
    return st;
}

char *run_slurm_alloc_text(const struct run *r, enum slurm_chore what, struct arena *arena)
{
    char path[PATH_MAX], *text;
    struct tp_err ignored;
    size_t n;

    alloc_log(r, what, path);
    return file_read_all(&text, &n, path, 1 << 16, arena, &ignored) ? "" : text;
}

void run_slurm_event(struct run *r, const char *result, const char *reason)
{
    run_event(r, "allocation",
              json_pack("{s:s,s:I,s:s}", "result", result, "slurm_job",
                        (json_int_t)r->book.slurm_job, "reason", reason));
}

double run_slurm_left(const struct run *r)
{
    const struct run_slurm *s = r->slurm;
    double left = s->view.left - (run_now() - s->seen_at);

    return s->stage != SLURM_HELD || s->view.left < 0 ? -1 : left > 0 ? left : 0;
}

/* ---- beginning ---- */

void run_slurm_drop_growth(struct run *r)
{
    struct run_slurm *s = r->slurm;
    struct arena arena = { 0 };
    struct tp_err ignored;
    char log[PATH_MAX];
    bool granted;

    if (s->chore[CHORE_GROW].pid)
        kill(s->chore[CHORE_GROW].pid, SIGTERM); /* salloc cancels what it waits for */
    if (!s->grow_id)
        s->grow_id = slurm_allocated(run_slurm_alloc_text(r, CHORE_GROW, &arena), &granted);
    if (s->grow_id)
        slurm_cancel(r->job, s->grow_id, &ignored);
    s->grow_id = 0;
    alloc_log(r, CHORE_GROW, log);
    unlink(log);
    arena_free(&arena);
}

tp_status run_slurm_open(struct run *r, struct job *job, const json_t *last)
{
    struct run_slurm *s = calloc(1, sizeof *s);
    const char *inside = getenv("SLURM_JOB_ID"), *size = getenv("SLURM_JOB_NUM_NODES");

    if (!s)
        return tp_fail(&r->err, TP_E_NOMEM, "no memory");
    for (int i = 0; i < CHORES; i++)
        s->chore[i].fd = -1;
    s->job = job;
    s->inside = inside ? strtol(inside, NULL, 10) : 0;
    s->wanted = job->slurm.nodes    ? job->slurm.nodes
                : s->inside && size ? strtol(size, NULL, 10)
                                    : 1;
    s->probed = -1;
    s->view.left = -1;
    s->view_text = NULL;
    r->slurm = s;
    return run_slurm_restore_nodes(r, last);
}

void run_slurm_begin(struct run *r)
{
    struct run_slurm *s = r->slurm;
    struct book *b = &r->book;
    struct arena arena = { 0 };
    bool granted;

    if (s->inside && !(b->slurm_own && b->slurm_job)) { /* not what an earlier batch job had */
        b->slurm_job = s->inside;
        b->slurm_own = false;
    } else if (!s->inside && !b->slurm_own) {
        b->slurm_job = 0;
    }
    if (b->slurm_next == s->inside)
        b->slurm_next = 0; /* that is us */
    if (!b->slurm_job &&
        (b->slurm_job = slurm_allocated(run_slurm_alloc_text(r, CHORE_ALLOC, &arena),
                                        &granted))) /* asked before it died */
        b->slurm_own = true;
    s->stage = b->slurm_job ? SLURM_ASKED : SLURM_NONE;
    s->remembered = b->slurm_own;
    run_slurm_drop_growth(r);
    arena_free(&arena);
}

/* ---- asking for an allocation ---- */

static tp_status request(struct run *r)
{
    struct run_slurm *s = r->slurm;
    struct arena arena = { 0 };
    struct job_words words;
    const struct slurm_request q = { .nodes = s->wanted, .exclude = run_slurm_excluded(r, &arena) };
    tp_status st;

    if (run_now() < s->next_request || process_find(ALLOC_ENV, r->book.run_id) > 0)
        return TP_OK; /* an earlier tp-run's salloc is still to say its job's number */
    r->book.slurm_own = true;
    s->over[0] = 0;
    st = run_edge(r, r->book.state, "asking Slurm for nodes");
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
static tp_status read_request(struct run *r)
{
    struct arena arena = { 0 };
    bool granted;
    long id = slurm_allocated(run_slurm_alloc_text(r, CHORE_ALLOC, &arena), &granted);
    tp_status st = TP_OK;

    if (id) {
        r->book.slurm_job = id;
        r->slurm->next_look = 0;
        st = run_edge(r, r->book.state, "Slurm has the request");
    }
    arena_free(&arena);
    return st;
}

static tp_status request_over(struct run *r, int exit_code)
{
    struct run_slurm *s = r->slurm;
    struct arena arena = { 0 };
    const char *text;
    char why[300];
    tp_status st = r->book.slurm_job ? TP_OK : read_request(r);

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

    alloc_log(r, CHORE_ALLOC, log);
    unlink(log);
    free(s->list);
    s->list = NULL;
    s->stage = SLURM_NONE;
    s->must_look = s->ending = false;
    s->next_grow = 0;
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
    return run_edge(r, r->book.state, "the allocation is over");
}

static tp_status ask_view(struct run *r)
{
    struct arena arena = { 0 };
    struct job_words words;
    tp_status st;

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

    if (is_waiting(state) || (is_running(state) && !s->view.list[0]))
        return TP_OK;
    if (!is_running(state))
        return allocation_over(r, state);
    if (s->list && strcmp(s->list, s->view.list) == 0 && s->stage == SLURM_HELD)
        return ask_nodes(r, CHORE_STATES);
    free(s->list);
    s->list = strdup(s->view.list);
    return s->list ? ask_nodes(r, CHORE_HOSTS)
                   : tp_fail(&r->err, TP_E_NOMEM, "no memory for the nodes");
}

static tp_status viewed(struct run *r, int exit_code)
{
    struct run_slurm *s = r->slurm;
    const struct child *c = &s->chore[CHORE_VIEW];
    char *text = strdup(c->text ? c->text : "");

    s->next_look = run_now() + (s->stage == SLURM_HELD ? r->job->slurm.poll : QUEUE_LOOK_S);
    if (!text)
        return tp_fail(&r->err, TP_E_NOMEM, "no memory for squeue's answer");
    if (r->book.slurm_job == 0 || r->over) { /* it was forgotten meanwhile */
        free(text);
        return TP_OK;
    }
    if (exit_code == 0 && text[0]) {
        free(s->view_text);
        s->view_text = text;
        s->seen_at = run_now();
        s->away_told = false;
        return slurm_view_read(&s->view, text, time(NULL))
                   ? use_view(r)
                   : tp_fail(&r->err, TP_E_IO, "squeue: not what was asked for: %.200s", c->text);
    }
    free(text);
    if (exit_code == 0 || strstr(child_last_line(c), "Invalid job id"))
        return allocation_over(r, "gone");
    if (!s->away_told)
        run_slurm_event(r, "Slurm does not answer", child_last_line(c));
    s->away_told = true;
    s->next_look = run_now() + r->job->slurm.poll;
    return TP_OK;
}

/* The nodes' names are known: from the first time on the allocation is held. */
static tp_status named(struct run *r, int exit_code)
{
    struct run_slurm *s = r->slurm;
    struct book *b = &r->book;
    bool fresh = b->slurm_link != b->slurm_job;
    tp_status st;

    if (exit_code || !s->chore[CHORE_HOSTS].text)
        return tp_fail(&r->err, TP_E_IO, "scontrol show hostnames: %.200s",
                       child_last_line(&s->chore[CHORE_HOSTS]));
    if (b->slurm_job == 0 || r->over)
        return TP_OK;
    if ((st = run_slurm_set_nodes(r, s->chore[CHORE_HOSTS].text, fresh)))
        return st;
    if (s->stage != SLURM_HELD) {
        s->stage = SLURM_HELD;
        s->remembered = false;
        s->margin = r->job->slurm.margin;
        if (s->view.left >= 0 && s->view.left < 2 * s->margin)
            s->margin = s->view.left / 2;
        run_slurm_event(r, fresh ? "held" : "found", s->view.list);
    }
    if (fresh && (st = run_slurm_new_link(r)))
        return st;
    return r->over ? TP_OK : ask_nodes(r, CHORE_STATES);
}

static tp_status done(struct run *r, enum slurm_chore what, int exit_code)
{
    struct run_slurm *s = r->slurm;
    const struct child *c = &s->chore[what];

    switch (what) {
    case CHORE_VIEW:
        return viewed(r, exit_code);
    case CHORE_HOSTS:
        return named(r, exit_code);
    case CHORE_STATES:
        s->must_look = false;
        return exit_code || !c->text || r->over ? TP_OK : run_slurm_see_states(r, c->text);
    case CHORE_ALLOC:
        return request_over(r, exit_code);
    case CHORE_FIND:
        return run_slurm_found_next(r, exit_code);
    case CHORE_SUBMIT:
        return run_slurm_submitted_next(r, exit_code);
    case CHORE_PROBE:
        return run_slurm_probed(r, exit_code);
    case CHORE_DRAIN:
        run_event(r, "node_drained",
                  json_pack("{s:s,s:b,s:s}", "node", s->drained, "ok", exit_code == 0, "reason",
                            child_last_line(c)));
        return TP_OK;
    case CHORE_CANCEL:
        return TP_OK;
    default:
        return run_slurm_grown(r, what, exit_code);
    }
}

tp_status run_slurm_reaped(struct run *r, pid_t pid, int status, bool *mine)
{
    *mine = false;
    for (int i = 0; r->slurm && i < CHORES; i++)
        if (r->slurm->chore[i].pid == pid) {
            *mine = true;
            return done(r, (enum slurm_chore)i, child_over(&r->slurm->chore[i], status));
        }
    return TP_OK;
}

/* ---- while it lasts ---- */

tp_status run_slurm_tick(struct run *r)
{
    struct run_slurm *s = r->slurm;
    double now = run_now();
    tp_status st = TP_OK;

    for (int i = 0; i < CHORES; i++)
        child_look(&s->chore[i], now);
    if (s->stage == SLURM_ASKED && !r->book.slurm_job)
        st = read_request(r);
    if (st == TP_OK && r->book.slurm_job && now >= s->next_look && !run_slurm_busy(r, CHORE_VIEW) &&
        !run_slurm_busy(r, CHORE_HOSTS) && !run_slurm_busy(r, CHORE_STATES))
        st = ask_view(r);
    if (st == TP_OK && s->stage == SLURM_HELD)
        st = run_slurm_watch_end(r);
    if (st == TP_OK && s->stage == SLURM_HELD && !r->over && !s->ending)
        st = run_slurm_probe(r);
    if (st == TP_OK && s->stage == SLURM_HELD && !r->over && !s->ending)
        st = run_slurm_grow(r);
    return st;
}

tp_status run_slurm_ready(struct run *r, bool *ready)
{
    struct run_slurm *s = r->slurm;
    struct book *b = &r->book;
    char text[160];

    *ready = s->stage == SLURM_HELD && !s->must_look && !run_slurm_is_ending(r);
    if (*ready)
        return TP_OK;
    ledger_switch(r->ledger, LEDGER_WAITING, run_now());
    if (s->stage == SLURM_HELD && run_slurm_is_ending(r))
        return run_slurm_hand_over(r, "the wall time ends");
    if (s->stage != SLURM_NONE)
        return TP_OK;
    if (s->over[0] && (!b->slurm_own || !r->job->slurm.chain ||
                       strncmp(s->over, "CANCELLED", 9) == 0 || s->never_held)) {
        snprintf(text, sizeof text, "the allocation is over (%s)", s->over);
        run_finish(r, RUN_STOPPED, TP_E_STOPPED, text);
        return TP_OK;
    }
    return request(r);
}

bool run_slurm_is_terminated(struct run *r)
{
    struct run_slurm *s = r->slurm;
    struct arena arena = { 0 };
    struct job_words words;
    struct slurm_view view;
    struct tp_err ignored;
    char *text;
    bool ends = s && s->ending;

    if (!s || ends || !s->inside || s->inside != r->book.slurm_job || !r->job->slurm.chain)
        return ends;
    slurm_view_words(&words, s->inside, &arena);
    if (slurm_ask(&text, &words, r->job->state, &arena, &ignored) == TP_OK &&
        slurm_view_read(&view, text, time(NULL)))
        ends = strcmp(view.reason, "TimeLimit") == 0 ||
               (strncmp(view.state, "CANCELLED", 9) != 0 && view.left >= 0 &&
                view.left <= r->job->slurm.margin);
    arena_free(&arena);
    s->ending = ends;
    return ends;
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
    return st ? st : run_edge(r, r->book.state, "the allocation is given back");
}

/* salloc cancels its request when it is told to end; what it had got by then is cancelled too. */
static void end_request(struct run *r)
{
    struct child *c = &r->slurm->chore[CHORE_ALLOC];

    if (!c->pid)
        return;
    kill(c->pid, SIGTERM);
    for (int i = 0; i < 100 && process_state(c->pid) != 'Z'; i++)
        usleep(20 * 1000);
    if (!r->book.slurm_job)
        read_request(r);
}

void run_slurm_close(struct run *r)
{
    struct run_slurm *s = r->slurm;
    struct book *b = &r->book;
    struct tp_err ignored;
    char log[PATH_MAX];

    if (!s)
        return;
    if (r->over) {
        if (!b->chained && b->slurm_next)
            slurm_cancel(r->job, (long)b->slurm_next, &ignored);
        run_slurm_drop_growth(r);
        if (b->slurm_own) {
            end_request(r);
            if (b->slurm_job)
                slurm_cancel(r->job, (long)b->slurm_job, &ignored);
            alloc_log(r, CHORE_ALLOC, log);
            unlink(log);
        }
    } else { /* its request lives on, for the next tp-run */
        s->chore[CHORE_ALLOC].pid = 0;
    }
    for (int i = 0; i < CHORES; i++)
        child_free(&s->chore[i]);
    run_slurm_free_nodes(r);
    free(s->view_text);
    free(s->list);
    free(s);
    r->slurm = NULL;
}

json_t *run_slurm_json(const struct run *r)
{
    const struct run_slurm *s = r->slurm;
    bool seen = s->view_text != NULL && r->book.slurm_job != 0;

    return json_pack("{s:I,s:s,s:s,s:f,s:I,s:I}", "job", (json_int_t)r->book.slurm_job, "state",
                     seen                     ? s->view.state
                     : s->stage == SLURM_NONE ? "none"
                                              : "asked",
                     "reason", seen ? s->view.reason : "", "left", run_slurm_left(r), "next",
                     (json_int_t)r->book.slurm_next, "wanted", (json_int_t)s->wanted);
}

void run_slurm_line(const struct run *r, char *line, size_t size)
{
    const struct run_slurm *s = r->slurm;
    bool seen = s->view_text != NULL && r->book.slurm_job != 0;

    if (s->stage == SLURM_ASKED && r->world == 0)
        snprintf(line, size, "%s: waits for Slurm job %lld (%s)", r->job->name,
                 (long long)r->book.slurm_job, seen ? s->view.reason : "asked");
}
