/*
 * orchestrator/plan/cost.h - predicts the time of a step at other layouts from measured ones.
 *
 * The prediction is a sum of terms. Each term is a count that follows from model and layout, times
 * the seconds that one unit of it takes on this machine:
 *
 *     flops of the busiest rank    with the pipeline's bubble, uneven stages and recomputation
 *     bytes over tp, cp, ep, pp    activations, which the computation waits for
 *     bytes over dp                gradients, and what ZeRO gathers
 *     collectives                  their latency
 *     bytes of weights touched     each microbatch reads them, the optimizer once more
 *
 * The seconds of a unit start as a guess, of CPUs or of GPUs. Ridge regression fits them to the
 * measurements. It pulls them towards the multiple of the guess that fits best. So one measurement
 * scales all terms, and several distinguish a slow processor from a slow network. The bubble is
 * that of 1F1B, (pp - 1) / (vpp m) of the ideal time (Narayanan et al. 2021). No I/O.
 */
#ifndef ORCHESTRATOR_PLAN_COST_H
#define ORCHESTRATOR_PLAN_COST_H

#include <stdint.h>

#include "layout/model.h"
#include "layout/workload.h"
#include "orchestrator/job/run_config.h"

enum { COST_TERMS = 5, COST_SAMPLES_MAX = 64 };

/* Where the ranks are, which decides the first guess. */
enum cost_machine {
    COST_CPUS,
    COST_GPUS,         /* of one machine */
    COST_GPU_MACHINES, /* several machines with GPUs: ranks of dp are on different ones */
};

/* The work of a step, the same at every layout. */
struct cost_work {
    enum cost_machine machine;
    const struct model *model;
    struct workload asked; /* by the command; batch and sequence length are not 0 */
};

struct cost_model {
    double seconds[COST_TERMS]; /* of one unit of each term */
};

struct cost_sample {
    struct run_config config;
    double seconds; /* measured, of a step */
};

/* The counts of the terms for one step. */
void cost_terms(double x[COST_TERMS], const struct cost_work *work, const struct run_config *c);

/* Fit to n samples, 0 .. COST_SAMPLES_MAX. Without samples the result is the guess. */
void cost_fit(struct cost_model *out, const struct cost_work *work, const struct cost_sample *s,
              int n);

/* Seconds of one step. */
double cost_predict(const struct cost_model *m, const struct cost_work *work,
                    const struct run_config *c);

#endif
