/*
 * trainer/optimizer.h - from the gradients of a step, reduced
 * (trainer/data_parallel/grad_reduction.h), to new weights: the norm of all gradients, clipping,
 * AdamW.
 */
#ifndef TRAINER_OPTIMIZER_H
#define TRAINER_OPTIMIZER_H

#include "trainer/config.h"
#include "trainer/data_parallel/params.h"
#include "trainer/process_groups.h"

/* L2 norm over all parameters of the model, each element counted once. Collective over the
 * ranks of a replica; the same on every rank. */
tp_status optimizer_norm(double *norm, const struct params *p, const struct parallel *par,
                         struct tp_err *err);

/* Clip by `norm` and update weights and moments; step from 0. Collective over dp under ZeRO. */
tp_status optimizer_update(const struct params *p, const struct parallel *par,
                           const struct optimizer_options *o, int64_t step, double lr, double norm,
                           struct tp_err *err);

#endif
