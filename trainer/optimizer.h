/*
 * trainer/optimizer.h - from the gradients of a step's microbatches to new weights: reduction over
 * the ranks that hold the same parameters, the norm of all gradients, clipping, AdamW.
 */
#ifndef TRAINER_OPTIMIZER_H
#define TRAINER_OPTIMIZER_H

#include "trainer/config.h"
#include "trainer/parallel.h"
#include "trainer/params.h"

/* Sum gradients of shared KV heads over the tp ranks that hold them, under sp of what is not cut
 * over all of tp, of a tied head over the stages that hold it, then everything over all ranks that
 * hold the same parameters. */
tp_status optimizer_reduce(const struct params *p, const struct parallel *par, struct tp_err *err);

/* L2 norm over all parameters of the model, each element counted once. Collective over the
 * ranks of a replica; the same on every rank. */
tp_status optimizer_norm(double *norm, const struct params *p, const struct parallel *par,
                         struct tp_err *err);

/* Clip by `norm` and update weights and moments; step from 0. Collective over dp under ZeRO. */
tp_status optimizer_update(const struct params *p, const struct parallel *par,
                           const struct optimizer_options *o, int64_t step, double lr, double norm,
                           struct tp_err *err);

#endif
