/*
 * orchestrator/plan/planner.h - selects the layout for a number of ranks, and computes it once.
 *
 * Enumerating and checking candidates takes long for many ranks. So the planner keeps its answers
 * and computes one again only when something that it depends on has changed: the ranks, the layout
 * that was asked for, what attempts have shown (step times by more than 2 %), or the files of the
 * model and the parallel plan.
 */
#ifndef ORCHESTRATOR_PLAN_PLANNER_H
#define ORCHESTRATOR_PLAN_PLANNER_H

#include "core/err.h"
#include "orchestrator/job/job.h"
#include "orchestrator/plan/fit.h"

struct planner;

/* Make a planner for a job, which is borrowed. NULL: no memory. */
struct planner *planner_new(const struct job *job);
void planner_free(struct planner *p);

/* Select the best layout for at most `ranks` ranks that `wanted` asks for (candidates_pick). If
 * there is none now, select the best layout of all. findings may be NULL.
 * TP_E_LAYOUT: no layout fits; err has the reason. Other failures are those of candidates_find. */
tp_status planner_select(struct planner *p, struct plan_candidate *out, int ranks,
                         const char *wanted, const struct job_findings *findings,
                         struct tp_err *err);

/* How often candidates were computed so far. */
int64_t planner_computed(const struct planner *p);

#endif
