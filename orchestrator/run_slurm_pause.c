/* orchestrator/run_slurm_pause.c - see orchestrator/run_slurm.h: a job that Slurm suspends
 * (scontrol suspend, gang scheduling, preemption by suspending) and resumes.
 *
 * Its ranks are stopped on all nodes at once, which looks like nodes that are lost or ranks that
 * hang. So before either is concluded from a silence of all, Slurm is asked.
 */
#include <string.h>

#include "orchestrator/run_slurm.h"

/* Slurm answers in some ten milliseconds; one that does not is no reason to wait for a dead job. */
static const double ANSWER_S = 5, SAME_DOUBT_S = 1, STOOD_STILL_S = 5;

enum { ASKS = 4 }; /* a second apart */

bool run_slurm_is_paused(const struct run *r)
{
    return r->slurm && r->slurm->paused_at > 0;
}

void run_slurm_look_now(struct run *r)
{
    r->slurm->next_look = 0;
}

bool run_slurm_excuses(struct run *r)
{
    struct run_slurm *s = r->slurm;
    double now = run_now();

    if (!s || !r->book.slurm_job)
        return false;
    if (s->paused_at > 0)
        return true;
    if (now - s->doubted_at > SAME_DOUBT_S)
        s->doubt_at = now;
    s->doubted_at = now;
    if (now - s->doubt_at > ANSWER_S)
        return false;
    if (s->asked_at < s->doubt_at) {
        s->next_look = 0;
        return true;
    }
    return s->seen_at < s->asked_at; /* the answer said that it runs */
}

/* What the time goes to after a pause. */
static void back_to_work(struct run *r)
{
    switch (r->book.state) {
    case RUN_INIT:
        time_account_switch(r->ledger, TIME_STARTING, run_now());
        break;
    case RUN_TRAIN:
        time_account_switch(r->ledger, TIME_TRAINING, run_now());
        break;
    case RUN_SAVE:
        time_account_switch(r->ledger, TIME_SAVING, run_now());
        break;
    case RUN_DRAIN:
        time_account_switch(r->ledger, TIME_STOPPING, run_now());
        break;
    default:
        break;
    }
}

void run_slurm_end_pause(struct run *r, const char *how)
{
    struct run_slurm *s = r->slurm;
    char text[80];

    if (s->paused_at <= 0)
        return;
    snprintf(text, sizeof text, "after %.1f s", run_now() - s->paused_at);
    s->paused_at = 0;
    s->asks = ASKS;
    run_slurm_event(r, how, text);
    back_to_work(r);
}

void run_slurm_see_pause(struct run *r)
{
    struct run_slurm *s = r->slurm;
    bool now = strcmp(s->view.state, "SUSPENDED") == 0 || strcmp(s->view.state, "STOPPED") == 0;

    if (!now)
        run_slurm_end_pause(r, "resumed");
    if (!now || s->paused_at > 0)
        return;
    s->paused_at = run_now();
    time_account_switch(r->ledger, TIME_WAITING, run_now());
    run_slurm_event(r, "suspended", "Slurm has stopped its processes; nobody is blamed for that");
}

/* Slurm drops the signals of a step that is suspended, or not resumed on all nodes yet: whoever was
 * to save and stop is asked again. */
static void ask_again(struct run *r, double now)
{
    struct run_slurm *s = r->slurm;

    if (s->asks == 0 || s->paused_at > 0 || now < s->ask_again)
        return;
    s->asks--;
    s->ask_again = now + 1;
    if (r->book.state == RUN_DRAIN && r->fault.kind == FAULT_NONE && !r->drain_killed &&
        r->keeper > 0)
        kill(r->keeper, SIGUSR1);
}

void run_slurm_stretch(struct run *r)
{
    struct run_slurm *s = r->slurm;
    double now = run_now(), passed = s->ticked_at > 0 ? now - s->ticked_at : 0;
    char text[120];

    s->ticked_at = now;
    if (passed > STOOD_STILL_S) { /* in a batch job tp-run is stopped with the ranks */
        snprintf(text, sizeof text,
                 "tp-run itself stood still for %.1f s, as in a job that Slurm suspends", passed);
        run_slurm_event(r, "stood still", text);
        time_account_switch(r->ledger, TIME_WAITING, now - passed);
        back_to_work(r);
    }
    if (passed > STOOD_STILL_S ? r->drain_until > now - passed
                               : s->paused_at > 0 && r->drain_until > now)
        r->drain_until += passed;
    ask_again(r, now);
}
