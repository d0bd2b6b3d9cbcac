/* orchestrator/backend/slurm/slurm_pause.c - see orchestrator/backend/slurm/slurm_run.h: a job that
 * Slurm suspends (scontrol suspend, gang scheduling, preemption by suspending) and resumes.
 *
 * Slurm stops the ranks on all nodes at once, which looks like lost nodes or ranks that hang. So
 * when no rank reports anything, tp-run asks Slurm before it assumes a fault.
 */
#include <stdio.h>

#include "core/clock.h"
#include "orchestrator/backend/slurm/slurm_run.h"

/* Slurm usually answers within tens of milliseconds. A dead job must not wait long for an
 * answer. */
static const double ANSWER_S = 5, SAME_SILENCE_S = 1, STOOD_STILL_S = 5;

enum { ASKS = 4 }; /* one second apart */

bool slurm_is_paused(const void *state)
{
    const struct slurm *s = state;

    return s->pause.since > 0;
}

bool slurm_explains_silence(void *state)
{
    struct slurm *s = state;
    struct slurm_pause *p = &s->pause;
    const struct slurm_query *q = &s->query;
    double now = clock_seconds();

    if (!s->allocation.job)
        return false;
    if (p->since > 0)
        return true;
    if (now - p->silence_asked_at > SAME_SILENCE_S)
        p->silent_since = now;
    p->silence_asked_at = now;
    if (now - p->silent_since > ANSWER_S)
        return false;
    if (q->asked_at < p->silent_since) { /* squeue was not asked about this silence yet */
        slurm_look(s, false);
        return true;
    }
    return q->seen_at <
           q->asked_at; /* after an answer, p->since shows a suspension; else the job runs */
}

static void end_pause(struct slurm *s)
{
    struct slurm_pause *p = &s->pause;
    char text[80];

    if (p->since <= 0)
        return;
    snprintf(text, sizeof text, "after %.1f s", clock_seconds() - p->since);
    p->since = 0;
    p->asks = ASKS;
    slurm_event(s, SLURM_RESUMED, SLURM_REASON_NONE, text);
    s->host->resume(s->host->run);
}

void slurm_pause_see(struct slurm *s)
{
    if (!slurm_state_is_suspended(s->query.view.state)) {
        end_pause(s);
        return;
    }
    if (s->pause.since > 0)
        return;
    s->pause.since = clock_seconds();
    s->host->pause(s->host->run, s->pause.since);
    slurm_event(s, SLURM_SUSPENDED, SLURM_REASON_NONE,
                "Slurm has stopped the processes; this counts as no fault");
}

void slurm_pause_forget(struct slurm *s)
{
    s->pause.since = 0;
}

/* Slurm drops signals to a step that is suspended or not yet resumed on all nodes. So the request
 * to save and stop is repeated for a while. */
static void ask_again(struct slurm *s, double now)
{
    struct slurm_pause *p = &s->pause;

    if (p->asks == 0 || p->since > 0 || now < p->ask_at)
        return;
    p->asks--;
    p->ask_at = now + 1;
    s->host->ask_again(s->host->run);
}

void slurm_pause_tick(struct slurm *s)
{
    const struct backend_host *h = s->host;
    struct slurm_pause *p = &s->pause;
    double now = clock_seconds(), passed = p->ticked_at > 0 ? now - p->ticked_at : 0;
    char text[120];

    p->ticked_at = now;
    if (passed > STOOD_STILL_S) { /* in a batch job Slurm stops tp-run together with the ranks */
        snprintf(text, sizeof text,
                 "tp-run itself was stopped for %.1f s, as in a job that Slurm suspends", passed);
        slurm_event(s, SLURM_STOOD_STILL, SLURM_REASON_NONE, text);
        h->pause(h->run, now - passed);
        h->resume(h->run);
    }
    if (passed > STOOD_STILL_S || p->since > 0)
        h->extend(h->run, passed);
    ask_again(s, now);
}
