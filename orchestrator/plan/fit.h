/*
 * orchestrator/plan/fit.h - whether a layout can run a job: the model and the global batch, by the
 * rules that tp-train itself refuses by (layout/workload_check.h), the job's limits, and a rank's
 * memory. And how well: see orchestrator/plan/cost.h.
 */
#ifndef ORCHESTRATOR_PLAN_FIT_H
#define ORCHESTRATOR_PLAN_FIT_H

#include "core/arena.h"
#include "core/err.h"
#include "orchestrator/job/job.h"
#include "orchestrator/plan/candidates.h"
#include "orchestrator/state/run_record.h"

struct fit;

/* Read the model's config, if the job has one, and fit the cost model to book's measurements (book
 * may be NULL). *out lives in the arena. TP_E_USAGE, TP_E_NOTFOUND: the config cannot be read, or
 * no layout can run what tp-train is asked for. */
tp_status fit_open(struct fit **out, const struct job *job, const struct run_record *book,
                   struct arena *arena, struct tp_err *err);

const struct job *fit_job(const struct fit *f);

/* Layers of the model, 0: no model is known. */
int fit_layers(const struct fit *f);

/* Whether `pp` stages are about even: the largest at most a third above the mean. */
bool fit_stages_even(const struct fit *f, int pp);

/* Whether a mesh of one axis can be at all, ranks and memory aside. */
bool fit_is_possible(struct fit *f, const struct spec *s);

/* Fill in everything of c but way.spec, ranks and why = "", which are given. */
void fit_check(struct fit *f, struct plan_candidate *c, int max_ranks);

#endif
