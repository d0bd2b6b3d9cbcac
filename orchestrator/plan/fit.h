/*
 * orchestrator/plan/fit.h - whether a layout can run a job, and how fast.
 *
 * A layout is checked against the model and the global batch, by the same rules as in tp-train
 * (layout/workload_check.h), against the job's limits, and against a rank's memory. Its
 * step time is predicted by cost.h, or was measured in this job.
 *
 * With --device cuda that is the memory of a GPU (trainer/sizing/gpu_memory.h). Without
 * layouts.memory its limit is what the ranks have reported. A layout whose estimate alone exceeds
 * it is the last choice, unless one that has trained shows that the estimate is too high. With
 * --device auto ranks may get CPUs, so all this holds
 * from when they have reported GPUs.
 */
#ifndef ORCHESTRATOR_PLAN_FIT_H
#define ORCHESTRATOR_PLAN_FIT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/arena.h"
#include "core/err.h"
#include "orchestrator/job/job.h"
#include "orchestrator/job/run_config.h"
#include "orchestrator/state/job_findings.h"
#include "trainer/sizing/gpu_memory.h"

/* A layout that was considered. */
struct plan_candidate {
    struct run_config config;
    int ranks;
    bool legal;
    bool measured;  /* `seconds` was measured in this job */
    double seconds; /* of a step, 0: cannot be predicted (no model is known) */
    int64_t memory; /* bytes of the largest rank, of a GPU if on_gpu; 0: not known */
    bool on_gpu;
    struct gpu_memory gpu; /* on_gpu: the parts of `memory`, and memory of the host */
    bool is_tight;         /* it is legal, but fits the GPU only if the estimate of what CUDA and
                              NCCL take is too high: only if no other layout is legal */
    const char *why;       /* why it is not legal, "" */
};

struct fit;

/* Read the model's config, if the job has one, and fit the cost model to the measured step times
 * (findings may be NULL). *out lives in the arena. TP_E_USAGE, TP_E_NOTFOUND: the config cannot be
 * read, or no layout can run what tp-train is asked for. */
tp_status fit_open(struct fit **out, const struct job *job, const struct job_findings *findings,
                   struct arena *arena, struct tp_err *err);

const struct job *fit_job(const struct fit *f);

/* Layers of the model, 0: no model is known. */
int fit_layers(const struct fit *f);

/* Experts of a layer, if the model is known and a mixture of experts; else 0. */
int fit_experts(const struct fit *f);

/* Whether the largest of `pp` stages has at most a third more layers than the mean. */
bool fit_stages_even(const struct fit *f, int pp);

/* Whether a mesh of one axis is possible for the model and the batch. */
bool fit_is_possible(struct fit *f, const struct spec *s);

/* Check a candidate whose config.spec, ranks and why ("") are set, and fill in the rest. */
void fit_check(struct fit *f, struct plan_candidate *c, int max_ranks);

#endif
