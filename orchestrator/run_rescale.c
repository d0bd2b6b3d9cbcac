/* orchestrator/run_rescale.c - whether a larger layout is worth a restart. See run_inside.h. */
#include "orchestrator/run_state.h"

/* What a restart costs before one was measured; how far a run of unknown length is taken to go. */
static const double RESTART_GUESS_S = 10, HORIZON_S = 600;

/* What a larger layout would bring; all in seconds. */
struct prospect {
    struct plan_candidate best;
    double left;       /* steps of the run */
    double here;       /* a step takes now, 0: not known */
    double gain, need; /* over the rest of the run */
};

/* It stays at its layout though nodes are free: said once for every better one. */
static void tell_stay(struct run *r, const struct prospect *p)
{
    char to[SPEC_TEXT_MAX], why[256];

    if (run_config_same(&r->stays_for, &p->best.way))
        return;
    r->stays_for = p->best.way;
    snprintf(why, sizeof why,
             "%s would take about %.0f ms a step, here it is %.0f ms: over %.0f steps that saves "
             "%.1f s, and restart.worth asks for %.1f s",
             spec_format(to, &p->best.way.spec), 1e3 * p->best.seconds, 1e3 * p->here, p->left,
             p->gain, p->need);
    run_event(r, "plan",
              json_pack("{s:s,s:s,s:s,s:f,s:f}", "result", "stays", "better", to, "reason", why,
                        "gain_seconds", p->gain, "needed_seconds", p->need));
}

/* Whether so many ranks would run at a larger layout; if so what that would bring. need is 0 where
 * the job's own list of layouts says what it wants. */
static bool look_ahead(struct prospect *p, const struct run *r, int ranks)
{
    double cost = r->book.restart_seconds > 0 ? r->book.restart_seconds : RESTART_GUESS_S;
    struct tp_err ignored;

    *p = (struct prospect){ .here = monitor_step_seconds(r->monitor) };
    if (ranks <= r->world || run_choose_of(r, &p->best, ranks, &ignored) ||
        p->best.ranks <= r->world)
        return false;
    if (r->job->layouts.n_allow != 0 || p->best.seconds <= 0)
        return true;
    p->left = r->job->steps > 0 ? (double)(r->job->steps - monitor_best_step(r->monitor))
                                : HORIZON_S / (p->here > 0 ? p->here : 1);
    p->gain = p->left * (p->here - p->best.seconds);
    p->need = r->job->restart.worth * cost;
    return p->here > 0;
}

bool run_scale_pays(const struct run *r, int ranks)
{
    struct prospect p;

    return look_ahead(&p, r, ranks) && p.gain >= p.need;
}

tp_status run_scale_consider(struct run *r)
{
    struct prospect p;
    char text[160], to[SPEC_TEXT_MAX];

    if (!look_ahead(&p, r, run_free_ranks(r, true)))
        return TP_OK;
    if (p.gain < p.need) {
        tell_stay(r, &p);
        return TP_OK;
    }
    spec_format(to, &p.best.way.spec);
    if (p.need > 0)
        snprintf(text, sizeof text, "%s fits again and saves about %.1f s", to, p.gain);
    else
        snprintf(text, sizeof text, "%s fits again", to);
    r->book.new_layout = true;
    return run_drain_softly(r, text);
}
