/* orchestrator/run_rescale.c - see run_state.h: whether a larger layout is worth a restart. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "orchestrator/run_state.h"

/* The cost of a restart until one was measured, and the assumed remaining time of a run of unknown
 * length. */
static const double RESTART_GUESS_S = 10, HORIZON_S = 600;

struct run_rescale {
    char reported[SPEC_TEXT_MAX]; /* the larger layout for which RESULT_STAYS was reported */
};

/* The benefit of a larger layout. Times in seconds. */
struct run_prospect {
    struct plan_candidate best;
    double left;       /* remaining steps of the run */
    double here;       /* time of a step now, 0: not known */
    double gain, need; /* over the rest of the run */
};

tp_status run_rescale_open(struct run *r)
{
    r->rescale = calloc(1, sizeof *r->rescale);
    return r->rescale ? TP_OK : tp_fail(&r->err, TP_E_NOMEM, "no memory");
}

void run_rescale_reset(struct run *r)
{
    *r->rescale = (struct run_rescale){ 0 };
}

/* Report that the job stays at its layout, once for each larger one: the microbatch that goes with
 * it can change with the memory that is free. */
static void report_stay(struct run *r, const struct run_prospect *p)
{
    char to[SPEC_TEXT_MAX], why[256];

    spec_format(to, &p->best.config.spec);
    if (strcmp(r->rescale->reported, to) == 0)
        return;
    memcpy(r->rescale->reported, to, sizeof to);
    snprintf(why, sizeof why,
             "%s would take about %.0f ms per step, here it is %.0f ms: over %.0f steps that saves "
             "%.1f s, and restart.worth asks for %.1f s",
             to, 1e3 * p->best.seconds, 1e3 * p->here, p->left, p->gain, p->need);
    run_event(r, EVENT_PLAN, REASON_RESTART_NOT_WORTH, why,
              json_pack("{s:s,s:s,s:f,s:f}", "result", event_result_name(RESULT_STAYS), "better",
                        to, "gain_seconds", p->gain, "needed_seconds", p->need));
}

/* Whether this number of ranks allows a larger layout, and its benefit. need is 0 if the job's own
 * list of layouts decides. */
static bool look_ahead(struct run_prospect *p, const struct run *r, int ranks)
{
    const struct monitor *m = run_monitor(r);
    double cost = r->record.restart_seconds > 0 ? r->record.restart_seconds : RESTART_GUESS_S;
    struct tp_err ignored;

    *p = (struct run_prospect){ .here = m ? monitor_step_seconds(m) : 0 };
    if (!m || ranks <= r->attempt.world || run_select(r, &p->best, ranks, &ignored) ||
        p->best.ranks <= r->attempt.world)
        return false;
    if (r->job->layouts.n_allow != 0 || p->best.seconds <= 0)
        return true;
    p->left = r->job->steps > 0 ? (double)(r->job->steps - monitor_best_step(m))
                                : HORIZON_S / (p->here > 0 ? p->here : 1);
    p->gain = p->left * (p->here - p->best.seconds);
    p->need = r->job->restart.worth * cost;
    return p->here > 0;
}

bool run_rescale_pays(struct run *r, int ranks)
{
    struct run_prospect p;

    return look_ahead(&p, r, ranks) && p.gain >= p.need;
}

tp_status run_rescale_consider(struct run *r)
{
    struct run_prospect p;
    char text[160], to[SPEC_TEXT_MAX];

    if (!look_ahead(&p, r, run_free_ranks(r, true)))
        return TP_OK;
    if (p.gain < p.need) {
        report_stay(r, &p);
        return TP_OK;
    }
    spec_format(to, &p.best.config.spec);
    if (p.need > 0)
        snprintf(text, sizeof text, "%s fits again and saves about %.1f s", to, p.gain);
    else
        snprintf(text, sizeof text, "%s fits again", to);
    r->record.relaunch = true;
    return run_drain_softly(r, event_reason_name(REASON_LAYOUT_BETTER), text);
}
