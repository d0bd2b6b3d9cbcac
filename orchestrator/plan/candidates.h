/*
 * orchestrator/plan/candidates.h - the layouts that the ranks could run, the best first.
 *
 * Candidates are the job's own list (layouts.allow), or every mesh of at most the given ranks on
 * the axes of layouts.axes: every tp, pp, cp and dp that the model and the batch allow (pp only
 * with about even stages), each with and without vpp, sp and ZeRO. fit.h checks each and says why
 * others are refused. A degree that is impossible is listed once, alone, with the reason (above
 * CANDIDATES_REFUSED_SHOWN only powers of two).
 *
 * For tp-train each candidate also gets the microbatch size and the recomputation that the command
 * leaves open: the fastest predicted pair that fits memory. So recomputation is used only when
 * memory requires it, and a pipeline gets microbatches to fill it.
 *
 * Order: that of the job's list. Otherwise the shortest step first; within 2 % fewer ranks, then
 * the simpler layout.
 */
#ifndef ORCHESTRATOR_PLAN_CANDIDATES_H
#define ORCHESTRATOR_PLAN_CANDIDATES_H

#include "orchestrator/plan/fit.h"

enum { CANDIDATES_REFUSED_SHOWN = 16 };

/* All candidates for at most max_ranks ranks, the refused ones last. In the arena. times: the steps
 * measured in this job; may be NULL.
 * TP_E_USAGE, TP_E_NOTFOUND: the model's config cannot be read; there are too many candidates. */
tp_status candidates_find(struct plan_candidate **out, int *n, const struct job *job,
                          const struct step_times *times, int max_ranks, struct arena *arena,
                          struct tp_err *err);

/* The best one that `text` asks for: a spec, a number of ranks (at most so many), or "" for any.
 * TP_E_LAYOUT: none is legal; err has the reason. TP_E_USAGE: the text is neither. */
tp_status candidates_pick(struct plan_candidate *out, const struct plan_candidate *c, int n,
                          const char *text, struct tp_err *err);

#endif
