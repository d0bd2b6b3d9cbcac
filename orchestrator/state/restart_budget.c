/* orchestrator/state/restart_budget.c - see orchestrator/state/restart_budget.h. */
#include "orchestrator/state/restart_budget.h"

#include <stdio.h>

bool restart_budget_take(struct run_record *r, const struct job *job, double now,
                         enum event_reason *reason, char why[RESTART_BUDGET_TEXT])
{
    int kept = 0;

    for (int i = 0; i < r->n_restarts; i++)
        if (now - r->restarts[i] < job->restart.within)
            r->restarts[kept++] = r->restarts[i];
    r->n_restarts = kept;
    if (r->fails_in_row >= job->restart.no_progress) {
        *reason = REASON_NO_PROGRESS;
        if (r->best_step >= 0)
            snprintf(why, RESTART_BUDGET_TEXT, "%lld starts in a row without a step beyond %lld",
                     (long long)r->fails_in_row, (long long)r->best_step);
        else
            snprintf(why, RESTART_BUDGET_TEXT, "%lld starts in a row without a step",
                     (long long)r->fails_in_row);
        return false;
    }
    if (kept >= job->restart.max || kept == RUN_RECORD_RESTARTS_MAX) {
        *reason = REASON_TOO_MANY_RESTARTS;
        snprintf(why, RESTART_BUDGET_TEXT, "%d restart%s within %.0f s", kept, kept == 1 ? "" : "s",
                 job->restart.within);
        return false;
    }
    r->restarts[r->n_restarts++] = now;
    return true;
}

double restart_budget_back_off(const struct run_record *r, const struct job *job)
{
    double wait = job->restart.backoff;
    const double most = job->restart.backoff_max;

    if (r->fails_in_row <= 1)
        return 0;
    for (int64_t i = 2; i < r->fails_in_row && wait < most; i++)
        wait *= 2;
    return wait < most ? wait : most;
}
