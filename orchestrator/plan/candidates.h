/*
 * orchestrator/plan/candidates.h - the layouts that the ranks could run, best first.
 *
 * Candidates are the job's own list (layouts.allow), or every mesh of at most the given ranks on
 * the axes of layouts.axes: every tp, pp, cp and dp that the model and the batch allow (pp only
 * with about even stages), each with and without vpp, sp and ZeRO. fit.h checks each
 * candidate and gives the reason for a refusal. An impossible degree is listed once, as a mesh of
 * one axis, with the reason (above CANDIDATES_REFUSED_SHOWN only powers of two).
 *
 * For tp-train each candidate also gets the microbatch size and the recomputation that the command
 * leaves open: the fastest predicted pair that fits memory. So recomputation is used only when
 * memory requires it, and a pipeline gets microbatches to fill it.
 *
 * Candidates from the job's list keep its order. Otherwise the shortest step comes first. Among
 * steps within 2 %, fewer ranks come first, then the simpler layout.
 */
#ifndef ORCHESTRATOR_PLAN_CANDIDATES_H
#define ORCHESTRATOR_PLAN_CANDIDATES_H

#include "orchestrator/plan/fit.h"

enum { CANDIDATES_REFUSED_SHOWN = 16 };

/* All candidates for at most max_ranks ranks, the refused ones last. In the arena. findings: of
 * this job; may be NULL.
 * TP_E_USAGE, TP_E_NOTFOUND: the model's config cannot be read; there are too many candidates. */
tp_status candidates_find(struct plan_candidate **out, int *n, const struct job *job,
                          const struct job_findings *findings, int max_ranks, struct arena *arena,
                          struct tp_err *err);

/* The best legal candidate of c; NULL: there is none. */
const struct plan_candidate *candidates_best(const struct plan_candidate *c, int n);

/* Pick the best candidate that `text` asks for: a spec, the largest number of ranks, or "" for any.
 * TP_E_LAYOUT: none is legal; err has the reason. TP_E_USAGE: the text is none of these. */
tp_status candidates_pick(struct plan_candidate *out, const struct plan_candidate *c, int n,
                          const char *text, struct tp_err *err);

#endif
