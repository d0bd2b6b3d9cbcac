/* orchestrator/run_slurm_next.c - see orchestrator/run_slurm.h: the allocation's end, and more of
 * it.
 *
 * In a batch job the next one is submitted as soon as this one's end is known, to begin after it
 * (afterany): it waits in the queue already, and goes on even when this one dies without a word.
 * Two never train at once: the next begins when this job is over, takes the lock of the state
 * folder, and claims a newer epoch.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "orchestrator/backend/slurm/slurm_options.h"
#include "orchestrator/run_slurm.h"

static const double AGAIN_S = 60, REQUEST_PATIENCE_S = 120;

/* ---- the end ---- */

bool run_slurm_is_ending(const struct run *r)
{
    return r->slurm && r->slurm->ending;
}

/* What a new allocation must have brought to be worth its queueing. */
static int64_t progress(const struct run *r)
{
    return r->job->checkpoints == JOB_CKPT_TP ? r->book.saved : r->book.best_step;
}

tp_status run_slurm_new_link(struct run *r)
{
    struct run_record *b = &r->book;
    char text[120];
    tp_status st;

    b->idle_links = b->slurm_link && progress(r) <= b->link_saved ? b->idle_links + 1 : 0;
    b->slurm_link = b->slurm_job;
    b->slurm_restarts = r->slurm->view.restarts;
    b->link_saved = progress(r);
    st = run_transition(r, b->state, "a new allocation");
    if (st == TP_OK && b->idle_links >= r->job->restart.no_progress) {
        snprintf(text, sizeof text, "%lld allocations in a row without %s",
                 (long long)b->idle_links,
                 r->job->checkpoints == JOB_CKPT_TP ? "a new checkpoint" : "a new step");
        run_finish(r, RUN_FAILED, TP_E_COMM, text);
    }
    return st;
}

/* Is it submitted already, by a tp-run that died before it could write that down? */
static void find_words(const struct run *r, struct job_words *words, struct arena *arena)
{
    slurm_words(words, arena, "squeue", "-h", "-t", "PENDING", "-n", r->job->name, "-o", "%i|%E",
                NULL);
}

/* The job in squeue's answer that depends on ours, 0: none. */
static long find_dependent(const char *text, int64_t ours)
{
    char word[64];
    const char *at;

    snprintf(word, sizeof word, "|afterany:%lld", (long long)ours);
    for (at = text ? strstr(text, word) : NULL; at; at = strstr(at + 1, word)) {
        char next = at[strlen(word)];

        while (at > text && at[-1] != '\n')
            at--;
        if (next == 0 || !strchr("0123456789", next))
            return strtol(at, NULL, 10);
        at = strstr(at, word);
    }
    return 0;
}

static tp_status take_next(struct run *r, long id)
{
    r->book.slurm_next = id;
    run_event(
        r, "chain",
        json_pack("{s:I,s:I}", "slurm_job", (json_int_t)r->book.slurm_job, "next", (json_int_t)id));
    return run_transition(r, r->book.state, "the next batch job is submitted");
}

static tp_status next_words(struct run *r, struct job_words *words, struct arena *arena)
{
    const struct run_slurm *s = r->slurm;

    return slurm_sbatch(words, r->job, r->self, (long)r->book.slurm_job,
                        s->view_text ? &s->view : NULL, s->wanted, arena, &r->err);
}

tp_status run_slurm_found_next(struct run *r, int exit_code)
{
    struct run_slurm *s = r->slurm;
    long id = exit_code ? 0 : find_dependent(s->chore[CHORE_FIND].text, r->book.slurm_job);
    struct arena arena = { 0 };
    struct job_words words;
    tp_status st;

    s->next_submit = run_now() + AGAIN_S;
    if (id)
        return take_next(r, id);
    if (exit_code || r->over || r->book.slurm_job == 0)
        return TP_OK;
    st = next_words(r, &words, &arena);
    if (st == TP_OK)
        st = run_slurm_start(r, CHORE_SUBMIT, &words, REQUEST_PATIENCE_S);
    arena_free(&arena);
    return st;
}

tp_status run_slurm_submitted_next(struct run *r, int exit_code)
{
    struct run_slurm *s = r->slurm;
    const struct child *c = &s->chore[CHORE_SUBMIT];
    long id = exit_code ? 0 : slurm_submitted(child_last_line(c));

    if (id)
        return take_next(r, id);
    snprintf(s->submit_why, sizeof s->submit_why, "sbatch: %.180s", child_last_line(c));
    run_event(r, "chain",
              json_pack("{s:I,s:s}", "slurm_job", (json_int_t)r->book.slurm_job, "reason",
                        s->submit_why));
    return TP_OK;
}

tp_status run_slurm_watch_end(struct run *r)
{
    struct run_slurm *s = r->slurm;
    struct run_record *b = &r->book;
    double left = run_slurm_left(r);
    struct arena arena = { 0 };
    struct job_words words;
    char text[80];
    tp_status st = TP_OK;

    if (left < 0)
        return TP_OK;
    if (!b->slurm_own && slurm_options(r->job)->chain == SLURM_CHAIN_ON && !b->slurm_next &&
        !b->stop && run_now() >= s->next_submit && !run_slurm_busy(r, CHORE_FIND) &&
        !run_slurm_busy(r, CHORE_SUBMIT)) {
        find_words(r, &words, &arena);
        st = run_slurm_start(r, CHORE_FIND, &words, REQUEST_PATIENCE_S);
        arena_free(&arena);
    }
    if (st || s->ending || left > s->margin)
        return st;
    s->ending = b->new_layout = true; /* new_layout: a tp-run that takes over goes on too */
    s->why = "the wall time ends";
    snprintf(text, sizeof text, "%.0f s of the wall time are left", left);
    run_slurm_event(r, "ends", text);
    if (b->state == RUN_INIT || b->state == RUN_TRAIN || b->state == RUN_SAVE)
        st = run_drain_softly(r, text);
    return st;
}

/* Is the next job still there? Somebody may have cancelled it. */
static bool next_waits(const struct run *r)
{
    struct arena arena = { 0 };
    struct job_words words;
    struct slurm_view view;
    struct tp_err ignored;
    char *text;
    bool waits = true;

    slurm_view_words(&words, (long)r->book.slurm_next, &arena);
    if (slurm_ask(&text, &words, r->job->state, REQUEST_PATIENCE_S, &arena, &ignored) == TP_OK &&
        slurm_view_read(&view, text, time(NULL)))
        waits = strcmp(view.state, "PENDING") == 0;
    arena_free(&arena);
    return waits;
}

/* In a batch job that could go on but should not: the next one is submitted now, waiting. */
static tp_status submit_now(struct run *r)
{
    struct arena arena = { 0 };
    struct job_words words;
    struct tp_err err = { 0 };
    char *text = "";
    long id;
    tp_status st = TP_OK;

    find_words(r, &words, &arena);
    if (slurm_ask(&text, &words, r->job->state, REQUEST_PATIENCE_S, &arena, &err) == TP_OK &&
        (id = find_dependent(text, r->book.slurm_job)) != 0) {
        arena_free(&arena);
        return take_next(r, id);
    }
    if (slurm_submit(&id, r->job, r->self, (long)r->book.slurm_job,
                     r->slurm->view_text ? &r->slurm->view : NULL, r->slurm->wanted, &err) == TP_OK)
        st = take_next(r, id);
    else /* then nothing goes on, and the end says why */
        snprintf(r->slurm->submit_why, sizeof r->slurm->submit_why, "%.190s", err.msg);
    arena_free(&arena);
    return st;
}

tp_status run_slurm_hand_over(struct run *r, const char *why)
{
    struct run_slurm *s = r->slurm;
    struct run_record *b = &r->book;
    char text[400];
    bool done;
    tp_status st = run_slurm_leave_to_slurm(r, &done);

    if (st || done)
        return st;
    s->ending = false;
    if (b->slurm_own && slurm_options(r->job)->chain) {
        st = run_slurm_renew(r, why);
        return st || b->state == RUN_PLAN ? st : run_plan_begin(r);
    }
    if (s->inside == b->slurm_job && slurm_options(r->job)->chain == SLURM_CHAIN_REQUEUE &&
        run_slurm_requeue(r))
        return run_slurm_leave_to_slurm(r, &done);
    if (b->slurm_next && !next_waits(r))
        b->slurm_next = 0;
    if (!b->slurm_own && slurm_options(r->job)->chain && !b->slurm_next)
        st = submit_now(r);
    if (st)
        return st;
    b->chained = b->slurm_next != 0;
    if (b->chained)
        snprintf(text, sizeof text, "%.150s: Slurm job %lld goes on", why,
                 (long long)b->slurm_next);
    else
        snprintf(text, sizeof text, "%.150s, and no other job goes on%s%.190s", why,
                 s->submit_why[0] ? ": " : "", s->submit_why);
    run_finish(r, RUN_STOPPED, TP_E_STOPPED, text);
    return TP_OK;
}

/* ---- more nodes ---- */

/* Nodes that the allocation should have and does not. */
static int64_t missing(const struct run *r)
{
    int64_t n = r->slurm->wanted;

    for (int i = 0; i < r->job->n_nodes; i++)
        n -= !r->book.nodes[i].left;
    return n > 0 ? n : 0;
}

/* Would they be put to use, and is there time for it? */
static bool pays(struct run *r, int64_t nodes)
{
    const struct run_slurm *s = r->slurm;
    double left = run_slurm_left(r);
    int more = (int)(nodes * slurm_options(r->job)->tasks_per_node);

    return (left < 0 || left > 2 * s->margin) && run_scale_pays(r, run_free_ranks(r, false) + more);
}

static tp_status ask_growth(struct run *r, int64_t nodes)
{
    struct arena arena = { 0 };
    struct job_words words;
    const struct slurm_request q = { .nodes = nodes,
                                     .exclude = run_slurm_excluded(r, &arena),
                                     .expand = (long)r->book.slurm_job,
                                     .seconds = run_slurm_left(r) };
    tp_status st = slurm_salloc(&words, r->job, &q, &arena, &r->err);
    char text[80];

    if (st == TP_OK)
        st = run_slurm_start(r, CHORE_GROW, &words, 0);
    snprintf(text, sizeof text, "%lld more nodes", (long long)nodes);
    if (st == TP_OK)
        run_slurm_event(r, "asked", text);
    arena_free(&arena);
    return st;
}

static tp_status ask_idle(struct run *r)
{
    struct arena arena = { 0 };
    struct job_words words;
    tp_status st;

    slurm_words(&words, &arena, "sinfo", "-h", "-t", "idle", "-p", r->slurm->view.partition, "-o",
                "%D", NULL);
    st = run_slurm_start(r, CHORE_IDLE, &words, REQUEST_PATIENCE_S);
    arena_free(&arena);
    return st;
}

tp_status run_slurm_grow(struct run *r)
{
    struct run_slurm *s = r->slurm;
    int64_t nodes = missing(r);
    double now = run_now();

    if (nodes == 0 || slurm_options(r->job)->grow == SLURM_GROW_OFF || r->book.state != RUN_TRAIN ||
        r->book.stop || now < s->next_grow || run_slurm_busy(r, CHORE_GROW) ||
        run_slurm_busy(r, CHORE_JOIN) || run_slurm_busy(r, CHORE_IDLE))
        return TP_OK;
    s->next_grow = now + slurm_options(r->job)->poll;
    if (!pays(r, nodes))
        return TP_OK;
    return slurm_options(r->job)->grow == SLURM_GROW_EXPAND ? ask_growth(r, nodes) : ask_idle(r);
}

/* salloc has got more nodes: they join the allocation, and the next look finds them there. */
static tp_status join(struct run *r, int exit_code)
{
    struct run_slurm *s = r->slurm;
    struct arena arena = { 0 };
    struct job_words words;
    char text[300];
    bool granted = false;
    tp_status st = TP_OK;

    if (s->grow_dropped) {
        s->grow_dropped = false;
        return TP_OK;
    }
    snprintf(text, sizeof text, "%.299s", run_slurm_alloc_text(r, CHORE_GROW, &arena));
    s->grow_id = slurm_allocated(text, &granted);
    if (exit_code == 0 && granted) {
        slurm_words(&words, &arena, "scontrol", "update",
                    arena_printf(&arena, "JobId=%ld", s->grow_id), "NumNodes=0", NULL);
        st = run_slurm_start(r, CHORE_JOIN, &words, REQUEST_PATIENCE_S);
    } else {
        s->next_grow = run_now() + (slurm_is_away(text) ? AGAIN_S : 1e18);
        run_slurm_drop_growth(r);
        for (char *p = text; *p; p++)
            *p = *p == '\n' ? ' ' : *p;
        run_slurm_event(r, "cannot grow", text);
    }
    arena_free(&arena);
    return st;
}

static tp_status joined(struct run *r, int exit_code)
{
    struct run_slurm *s = r->slurm;
    const char *said = child_last_line(&s->chore[CHORE_JOIN]);
    char path[PATH_MAX];
    static const char *const scripts[] = { "sh", "csh" }; /* scontrol leaves them; of no use here */

    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%.4000s/slurm_job_%ld_resize.%s", r->job->state, s->grow_id,
                 scripts[i]);
        unlink(path);
    }
    run_slurm_event(r, exit_code ? "cannot grow" : "grown", exit_code ? said : "");
    if (exit_code)
        s->next_grow = 1e18;
    run_slurm_drop_growth(r);
    s->next_look = 0;
    return TP_OK;
}

/* Enough idle nodes: the job saves, and the allocation is given back for a whole one. */
static tp_status look_for_idle(struct run *r, int exit_code)
{
    const char *text = r->slurm->chore[CHORE_IDLE].text;
    int64_t idle = exit_code || !text ? 0 : strtoll(text, NULL, 10), nodes = missing(r);

    if (nodes == 0 || idle < nodes || r->book.state != RUN_TRAIN || run_slurm_is_ending(r))
        return TP_OK;
    r->slurm->ending = r->book.new_layout = true;
    r->slurm->why = "nodes are idle that make a whole allocation";
    return run_drain_softly(r, "nodes are idle: a whole allocation is asked for");
}

tp_status run_slurm_grown(struct run *r, enum slurm_chore what, int exit_code)
{
    if (r->over || !r->book.slurm_job)
        return TP_OK;
    switch (what) {
    case CHORE_GROW:
        return join(r, exit_code);
    case CHORE_JOIN:
        return joined(r, exit_code);
    case CHORE_IDLE:
        return look_for_idle(r, exit_code);
    default:
        return TP_OK;
    }
}
