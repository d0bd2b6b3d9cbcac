/* orchestrator/run_slurm_taken.c - see orchestrator/run_slurm.h: Slurm takes the nodes away though
 * the time is not over and nobody wants the job to stop.
 *
 * Preempted with a grace: Slurm sends SIGTERM to the steps at once, which the relays hand on as
 * "save and stop", and ends the job when the grace is over. Requeued (by that, by a person, after
 * the loss of a node): the batch job is ended as by scancel and begins anew under its number,
 * counted.
 */
#include <string.h>
#include <time.h>

#include "orchestrator/backend/slurm/slurm_options.h"
#include "orchestrator/run_slurm.h"

static const double PATIENCE_S = 10;

static bool is_requeued(const struct run *r, const struct slurm_view *v)
{
    return r->book.slurm_link == r->book.slurm_job && v->restarts > r->book.slurm_restarts;
}

/* Why the nodes are taken, NULL: they are not. */
static const char *taken_by(const struct run *r, const struct slurm_view *v)
{
    if (v->preempted)
        return "Slurm preempts the job";
    if (is_requeued(r, v))
        return "Slurm requeues the job";
    if (strcmp(v->reason, "TimeLimit") == 0 || (strcmp(v->state, "RUNNING") == 0 && v->left >= 0 &&
                                                v->left <= slurm_options(r->job)->margin))
        return "Slurm ends the job";
    return NULL;
}

enum slurm_fate run_slurm_fate(struct run *r)
{
    struct run_slurm *s = r->slurm;
    struct arena arena = { 0 };
    struct job_words words;
    struct slurm_view view;
    struct tp_err ignored;
    enum slurm_fate fate = SLURM_STAYS;
    const char *why;
    char *text;

    if (!s || !r->book.slurm_job)
        return SLURM_STAYS;
    slurm_view_words(&words, (long)r->book.slurm_job, &arena);
    if (slurm_ask(&text, &words, r->job->state, PATIENCE_S, &arena, &ignored) == TP_OK &&
        slurm_view_read(&view, text, time(NULL))) {
        why = taken_by(r, &view);
        fate = why ? SLURM_TAKEN : strcmp(view.state, "RUNNING") == 0 ? SLURM_STAYS : SLURM_GONE;
        s->preempted = view.preempted;
        s->requeued = s->inside == r->book.slurm_job && is_requeued(r, &view);
        if (why) {
            s->ending = r->book.new_layout = true;
            s->why = why;
            run_slurm_event(r, "taken", why);
        }
    }
    arena_free(&arena);
    return s->ending ? SLURM_TAKEN : fate;
}

bool run_slurm_requeue(struct run *r)
{
    struct run_slurm *s = r->slurm;
    struct arena arena = { 0 };
    struct job_words words;
    struct tp_err err = { 0 };

    slurm_words(&words, &arena, "scontrol", "requeue", arena_printf(&arena, "%ld", s->inside),
                NULL);
    s->requeued = slurm_ask(NULL, &words, r->job->state, PATIENCE_S, &arena, &err) == TP_OK;
    if (!s->requeued) /* then the next one is submitted after all */
        run_slurm_event(r, "cannot requeue", err.msg);
    arena_free(&arena);
    return s->requeued;
}

tp_status run_slurm_leave_to_slurm(struct run *r, bool *done)
{
    struct run_slurm *s = r->slurm;
    struct run_record *b = &r->book;
    struct tp_err ignored;
    char text[120];

    *done = true;
    if (s->requeued) { /* its own next job would be one too many: the requeued one sees to that */
        if (b->slurm_next)
            slurm_cancel(r->job, (long)b->slurm_next, 10, &ignored);
        b->slurm_next = s->inside;
        b->chained = true;
        snprintf(text, sizeof text, "Slurm requeues job %ld, which goes on", s->inside);
        run_finish(r, RUN_STOPPED, TP_E_STOPPED, text);
        return TP_OK;
    }
    if (s->waits)
        return TP_OK;
    *done = s->waits = s->inside == b->slurm_job && !slurm_options(r->job)->chain && s->preempted;
    if (!s->waits)
        return TP_OK;
    run_slurm_event(r, "waits", "it is preempted, and goes on if Slurm requeues it");
    s->ending = true;
    return b->state == RUN_PLAN ? TP_OK : run_plan_begin(r);
}

tp_status run_slurm_see_taken(struct run *r)
{
    struct run_slurm *s = r->slurm;

    if (s->ending || !s->view.preempted)
        return TP_OK;
    s->preempted = s->ending = r->book.new_layout = true;
    s->why = "Slurm preempts the job";
    run_slurm_event(r, "taken", s->why);
    if (r->book.state == RUN_INIT || r->book.state == RUN_TRAIN || r->book.state == RUN_SAVE)
        return run_drain_softly(r, s->why);
    return TP_OK;
}
