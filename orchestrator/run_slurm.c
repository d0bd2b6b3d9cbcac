/* orchestrator/run_slurm.c - see orchestrator/run_slurm.h: the allocation. */
#include "orchestrator/run_slurm.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/file.h"
#include "orchestrator/backend/slurm/slurm_options.h"
#include "orchestrator/process/process.h"

static const double END_PATIENCE_S = 300; /* for a Slurm that does not answer at the end */

/* ---- chores ---- */

void run_slurm_alloc_log(const struct run *r, enum slurm_chore what, char path[PATH_MAX])
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
    run_slurm_alloc_log(r, what, log);
    if (is_alloc)
        unlink(log);
    if (what == CHORE_ALLOC)
        setenv(RUN_SLURM_ENV, r->book.run_id, 1);
    st = child_start(c, words->word, r->job->state, is_alloc ? log : NULL, &r->err);
    unsetenv(RUN_SLURM_ENV);
    c->until = patience_s > 0 ? run_now() + patience_s : 0;
    return st;
}

char *run_slurm_alloc_text(const struct run *r, enum slurm_chore what, struct arena *arena)
{
    char path[PATH_MAX], *text;
    struct tp_err ignored;
    size_t n;

    run_slurm_alloc_log(r, what, path);
    return file_read_own(&text, &n, path, 1 << 16, arena, &ignored) ? "" : text;
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

    return s->stage != SLURM_HELD || !s->runs || s->view.left < 0 ? -1 : left > 0 ? left : 0;
}

/* ---- beginning ---- */

void run_slurm_drop_growth(struct run *r)
{
    struct run_slurm *s = r->slurm;
    struct arena arena = { 0 };
    struct tp_err ignored;
    char log[PATH_MAX];
    bool granted;

    s->grow_dropped = s->chore[CHORE_GROW].pid != 0;
    if (s->grow_dropped)
        kill(s->chore[CHORE_GROW].pid, SIGTERM); /* salloc cancels what it waits for */
    if (!s->grow_id)
        s->grow_id = slurm_allocated(run_slurm_alloc_text(r, CHORE_GROW, &arena), &granted);
    if (s->grow_id)
        slurm_cancel(r->job, s->grow_id, 0, &ignored);
    s->grow_id = 0;
    run_slurm_alloc_log(r, CHORE_GROW, log);
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
    s->wanted = slurm_options(job)->nodes ? slurm_options(job)->nodes
                : s->inside && size       ? strtol(size, NULL, 10)
                                          : 1;
    s->probed = -1;
    s->why = "";
    s->view.left = -1;
    s->view_text = NULL;
    r->slurm = s;
    return run_slurm_restore_nodes(r, last);
}

void run_slurm_begin(struct run *r)
{
    struct run_slurm *s = r->slurm;
    struct run_record *b = &r->book;
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

/* ---- while it lasts ---- */

static tp_status done(struct run *r, enum slurm_chore what, int exit_code)
{
    struct run_slurm *s = r->slurm;
    const struct child *c = &s->chore[what];

    switch (what) {
    case CHORE_VIEW:
        return run_slurm_viewed(r, exit_code);
    case CHORE_HOSTS:
        return run_slurm_named(r, exit_code);
    case CHORE_STATES:
        s->must_look = false;
        return exit_code || !c->text || r->over || r->book.slurm_job != s->looked_at
                   ? TP_OK
                   : run_slurm_see_states(r, c->text);
    case CHORE_ALLOC:
        return run_slurm_requested(r, exit_code);
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
    case CHORE_GUARD:
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

tp_status run_slurm_tick(struct run *r)
{
    struct run_slurm *s = r->slurm;
    double now = run_now();
    tp_status st = TP_OK;

    run_slurm_stretch(r);
    for (int i = 0; i < CHORES; i++)
        child_look(&s->chore[i], now);
    if (s->stage == SLURM_ASKED && !r->book.slurm_job)
        st = run_slurm_read_request(r);
    if (st == TP_OK && r->book.slurm_job && now >= s->next_look && !run_slurm_busy(r, CHORE_VIEW) &&
        !run_slurm_busy(r, CHORE_HOSTS) && !run_slurm_busy(r, CHORE_STATES))
        st = run_slurm_ask_view(r);
    if (s->paused_at > 0) /* its end is put off, and nothing can be started */
        return st;
    if (st == TP_OK && s->stage == SLURM_HELD)
        st = run_slurm_see_taken(r);
    if (st == TP_OK && s->stage == SLURM_HELD)
        st = run_slurm_watch_end(r);
    if (st == TP_OK && s->stage == SLURM_HELD && !r->over && !s->ending)
        st = run_slurm_post_guard(r);
    if (st == TP_OK && s->stage == SLURM_HELD && !r->over && !s->ending)
        st = run_slurm_probe(r);
    if (st == TP_OK && s->stage == SLURM_HELD && !r->over && !s->ending)
        st = run_slurm_grow(r);
    return st;
}

/* ---- the end ---- */

/* The last chance: nobody would end it after us. */
static void give_back(struct run *r, int64_t id)
{
    struct tp_err err = { 0 };
    char text[400];

    if (slurm_cancel(r->job, (long)id, END_PATIENCE_S, &err) == TP_OK)
        return;
    snprintf(text, sizeof text, "Slurm job %lld is left, end it with scancel: %.300s",
             (long long)id, err.msg);
    run_slurm_event(r, "not given back", text);
}

void run_slurm_close(struct run *r)
{
    struct run_slurm *s = r->slurm;
    struct run_record *b = &r->book;
    char log[PATH_MAX];

    if (!s)
        return;
    if (r->over) {
        if (!b->chained && b->slurm_next)
            give_back(r, b->slurm_next);
        run_slurm_drop_growth(r);
        if (b->slurm_own) {
            run_slurm_end_request(r);
            if (b->slurm_job)
                give_back(r, b->slurm_job);
            run_slurm_alloc_log(r, CHORE_ALLOC, log);
            unlink(log);
        }
    } else { /* its request lives on, for the next tp-run */
        s->chore[CHORE_ALLOC].pid = 0;
    }
    if (s->chore[CHORE_GUARD].pid) /* it ends by itself too, for STATE/home is gone */
        kill(s->chore[CHORE_GUARD].pid, SIGTERM);
    s->chore[CHORE_GUARD].pid = 0;
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
    else if (s->paused_at > 0)
        snprintf(line, size, "%s: Slurm has suspended job %lld, %.0f s ago", r->job->name,
                 (long long)r->book.slurm_job, run_now() - s->paused_at);
}
