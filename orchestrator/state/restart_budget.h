/*
 * orchestrator/state/restart_budget.h - how often a job may be started again after faults, and how
 * long to wait before: the keys restart.max, within, no_progress and backoff of the job file.
 */
#ifndef ORCHESTRATOR_STATE_RESTART_BUDGET_H
#define ORCHESTRATOR_STATE_RESTART_BUDGET_H

#include "orchestrator/job/job.h"
#include "orchestrator/state/event.h"
#include "orchestrator/state/run_record.h"

enum { RESTART_BUDGET_TEXT = 160 };

/* Take one restart at the time `now` (clock_seconds). False: none is left, and *reason and `why`
 * say which budget is used up. Restarts that are older than `within` are forgotten. */
bool restart_budget_take(struct run_record *r, const struct job *job, double now,
                         enum event_reason *reason, char why[RESTART_BUDGET_TEXT]);

/* Seconds to wait before the next start: none after a first fault, then doubled with each start
 * without progress. */
double restart_budget_back_off(const struct run_record *r, const struct job *job);

#endif
