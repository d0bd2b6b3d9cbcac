/* orchestrator/backend/slurm/slurm_next.c - see orchestrator/backend/slurm/slurm_run.h: the batch
 * job that continues after this one.
 *
 * It is submitted as soon as the end of this job is known, and begins after it (afterany). So it
 * already waits in the queue, and continues even if this job is killed. The two never train
 * at the same time: the next one begins when this job is over, takes the lock of the state folder,
 * and claims a newer epoch.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "orchestrator/backend/slurm/slurm_run.h"

enum { CONFIRM_US = 1000 * 1000 };

static const double AGAIN_S = 60, PATIENCE_S = 120;

void slurm_next_read(struct slurm *s, const json_t *json, bool is_old)
{
    struct slurm_next *n = &s->next;

#define NUMBER(now, old) json_integer_value(json_object_get(json, is_old ? (old) : (now)))
    n->job = (long)NUMBER("next", "slurm_next");
    n->held = (long)NUMBER("held", "slurm_link");
    n->restarts = NUMBER("restarts", "slurm_restarts");
    n->progress = NUMBER("progress", "link_saved");
    n->idle = NUMBER("idle", "idle_links");
#undef NUMBER
}

void slurm_next_set(struct slurm *s, long job)
{
    s->next.job = job;
}

void slurm_next_forgive(struct slurm *s)
{
    s->next.idle = 0;
}

/* ---- allocations without progress ---- */

bool slurm_next_is_fresh(const struct slurm *s)
{
    return s->next.held != s->allocation.job || s->next.restarts != s->query.view.restarts;
}

/* The progress that allocations are judged by: the saved step, or the best step. */
static int64_t progress(const struct slurm *s)
{
    const struct run_record *r = s->host->record;

    return s->host->job->checkpoints == JOB_CKPT_TP ? r->saved : r->best_step;
}

tp_status slurm_next_count(struct slurm *s)
{
    struct slurm_next *n = &s->next;
    char text[120];
    tp_status st;

    n->idle = n->held && progress(s) <= n->progress ? n->idle + 1 : 0;
    n->held = s->allocation.job;
    n->restarts = s->query.view.restarts;
    n->progress = progress(s);
    st = s->host->commit(s->host->run, "a new allocation");
    if (st == TP_OK && n->idle >= s->host->job->restart.no_progress) {
        snprintf(text, sizeof text, "%lld allocations in a row without %s", (long long)n->idle,
                 s->host->job->checkpoints == JOB_CKPT_TP ? "a new checkpoint" : "a new step");
        slurm_finish(s, RUN_FAILED, TP_E_COMM, SLURM_NO_PROGRESS, text);
    }
    return st;
}

/* ---- submitting it ---- */

/* squeue, for slurm_dependent: a tp-run may have died after sbatch, before it recorded the job. */
static void find_words(const struct slurm *s, struct job_words *words, struct arena *arena)
{
    slurm_words(words, arena, "squeue", "-h", "-t", "PENDING", "-n", s->host->job->name, "-o",
                "%i|%E", NULL);
}

static struct slurm_batch next_batch(const struct slurm *s)
{
    return (struct slurm_batch){ .after = s->allocation.job,
                                 .like = s->query.view_text ? &s->query.view : NULL,
                                 .nodes = s->allocation.wanted };
}

static tp_status take(struct slurm *s, long job)
{
    s->next.job = job;
    s->host->event(s->host->run, "chain", "", "",
                   json_pack("{s:I,s:I}", "slurm_job", (json_int_t)s->allocation.job, "next",
                             (json_int_t)job));
    return s->host->commit(s->host->run, "the next batch job is submitted");
}

tp_status slurm_next_tick(struct slurm *s)
{
    struct arena arena = { 0 };
    struct job_words words;
    tp_status st;

    if (s->allocation.own || s->options->chain != SLURM_CHAIN_ON || s->next.job ||
        s->host->record->stop || clock_seconds() < s->next.next_try ||
        slurm_is_running(s, SLURM_COMMAND_FIND) || slurm_is_running(s, SLURM_COMMAND_SUBMIT))
        return TP_OK;
    find_words(s, &words, &arena);
    st = slurm_start(s, SLURM_COMMAND_FIND, &words, PATIENCE_S);
    arena_free(&arena);
    return st;
}

tp_status slurm_next_found(struct slurm *s, int exit_code)
{
    const char *text = s->command[SLURM_COMMAND_FIND].text;
    const struct slurm_batch batch = next_batch(s);
    long job = exit_code ? 0 : slurm_dependent(text, s->allocation.job);
    struct arena arena = { 0 };
    struct job_words words;
    tp_status st;

    s->next.next_try = clock_seconds() + AGAIN_S;
    if (job)
        return take(s, job);
    if (exit_code || run_state_is_final(s->host->record->state) || s->allocation.job == 0)
        return TP_OK;
    st = slurm_sbatch(&words, &s->client, &batch, &arena, s->host->err);
    if (st == TP_OK)
        st = slurm_start(s, SLURM_COMMAND_SUBMIT, &words, PATIENCE_S);
    arena_free(&arena);
    return st;
}

tp_status slurm_next_submitted(struct slurm *s, int exit_code)
{
    const char *last = s->command[SLURM_COMMAND_SUBMIT].last;
    long job = exit_code ? 0 : slurm_submitted(last);

    if (job)
        return take(s, job);
    snprintf(s->next.why, sizeof s->next.why, "sbatch: %.180s", last);
    s->host->event(s->host->run, "chain", slurm_reason_name(SLURM_NO_NEXT_JOB), s->next.why,
                   json_pack("{s:I}", "slurm_job", (json_int_t)s->allocation.job));
    return TP_OK;
}

/* Whether Slurm says that the next batch job is over, so that nothing will continue. */
static bool next_is_over(const struct slurm *s)
{
    struct arena arena = { 0 };
    struct job_words words;
    struct slurm_view view;
    struct tp_err ignored;
    char *text;
    bool over;

    slurm_view_words(&words, s->next.job, &arena);
    over = slurm_ask(&text, &words, &s->client, PATIENCE_S, &arena, &ignored) == TP_OK &&
           slurm_view_read(&view, text, time(NULL)) && !slurm_state_waits(view.state) &&
           !slurm_state_runs(view.state);
    arena_free(&arena);
    return over;
}

void slurm_next_check(struct slurm *s)
{
    if (!s->next.job || !next_is_over(s))
        return;
    usleep(CONFIRM_US); /* one answer may be wrong while Slurm's controller restarts */
    if (next_is_over(s))
        s->next.job = 0; /* it was cancelled */
}

tp_status slurm_next_submit_now(struct slurm *s)
{
    const struct slurm_batch batch = next_batch(s);
    struct arena arena = { 0 };
    struct job_words words;
    struct tp_err err = { 0 };
    char *text = "";
    long job = 0;
    tp_status st = TP_OK;

    find_words(s, &words, &arena);
    if (slurm_ask(&text, &words, &s->client, PATIENCE_S, &arena, &err) == TP_OK)
        job = slurm_dependent(text, s->allocation.job);
    arena_free(&arena);
    s->next.why[0] = '\0';
    if (job || slurm_submit(&job, &s->client, &batch, &err) == TP_OK)
        st = take(s, job);
    else /* nothing continues, and the final message says why */
        snprintf(s->next.why, sizeof s->next.why, "%.190s", err.msg);
    return st;
}
