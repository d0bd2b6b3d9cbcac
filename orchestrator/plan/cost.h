/*
 * orchestrator/plan/cost.h - what a step will take at another layout, fitted to steps that were
 * measured.
 *
 * A step is predicted as a sum of products, each a count that follows from model and layout times
 * the seconds that one unit takes on this machine:
 *
 *     flops of the busiest rank    with the pipeline's bubble, uneven stages and recomputation
 *     bytes over tp, cp and pp     activations: what waits for them cannot go on
 *     bytes over dp                gradients, and what ZeRO gathers
 *     collectives                  their latency
 *     bytes of weights touched     every microbatch reads them again; the optimizer once
 *
 * The seconds begin as a guess and are fitted by ridge regression towards the multiple of that
 * guess which fits best, so that one measurement already scales everything, and several tell a slow
 * processor from a slow network. The bubble is that of 1F1B, (pp - 1) / (vpp m) of the ideal
 * (Narayanan et al. 2021). Pure arithmetic.
 */
#ifndef ORCHESTRATOR_PLAN_COST_H
#define ORCHESTRATOR_PLAN_COST_H

#include <stdint.h>

#include "layout/model.h"
#include "layout/workload.h"
#include "orchestrator/job/run_config.h"

enum { COST_TERMS = 5, COST_SAMPLES_MAX = 64 };

/* What is the same at every layout. */
struct cost_work {
    const struct model *model;
    struct workload asked; /* by the command; batch and seq are not 0 */
};

struct cost_model {
    double seconds[COST_TERMS]; /* a unit of each term */
};

struct cost_sample {
    struct run_config way;
    double seconds; /* a step, measured */
};

/* The counts of the terms for one step. */
void cost_terms(double x[COST_TERMS], const struct cost_work *work, const struct run_config *w);

/* Fit to n samples, 0 .. COST_SAMPLES_MAX; with none it is the guess. */
void cost_fit(struct cost_model *out, const struct cost_work *work, const struct cost_sample *s,
              int n);

/* Seconds of one step. */
double cost_predict(const struct cost_model *m, const struct cost_work *work,
                    const struct run_config *w);

#endif
