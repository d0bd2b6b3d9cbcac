/*
 * trainer/sizing/step_buffers.h - what a step exchanges with the host: its numbers and its tokens.
 */
#ifndef TRAINER_SIZING_STEP_BUFFERS_H
#define TRAINER_SIZING_STEP_BUFFERS_H

#include "kernels/adamw.h"
#include "trainer/sizing/buffer_pool.h"
#include "trainer/sizing/rank_dims.h"

struct step_optimizer {
    double squares;           /* the sum of squares of all gradients */
    double norm;              /* its root: the norm of the gradients before clipping */
    double scale;             /* what clipping multiplies gradients by */
    struct adamw_rates rates; /* of the step: the host's */
};

struct step_numbers {
    struct step_optimizer optimizer;
    double loss;     /* on the last stage: the sum over microbatches */
    double losses[]; /* of each microbatch, in order */
};

struct step_buffers {
    struct step_numbers *numbers;      /* device memory */
    struct step_numbers *numbers_read; /* pinned; without the losses */
    struct adamw_rates *rates;         /* pinned: for numbers->optimizer.rates */
    int32_t *tokens;                   /* pinned: [microbatches][2: inputs, targets][rows] */
};

void step_buffers_take(struct step_buffers *b, const struct rank_dims *d, struct buffer_pools *p);

#endif
