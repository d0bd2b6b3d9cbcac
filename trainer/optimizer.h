/*
 * trainer/optimizer.h - the update of the weights after the gradients are reduced
 * (trainer/data_parallel/grad_reduction.h): gradient norm, clipping, AdamW.
 */
#ifndef TRAINER_OPTIMIZER_H
#define TRAINER_OPTIMIZER_H

#include "trainer/config.h"
#include "trainer/data_parallel/bucket_transfer.h"
#include "trainer/data_parallel/params.h"
#include "trainer/process_groups.h"
#include "trainer/sizing/step_buffers.h"

/* Fill norm and scale of *n: the L2 norm of the gradients of all parameters of the model; each
 * element counts once. Collective over the ranks of a replica; all ranks get the same. clip: the
 * largest norm; 0: no limit. */
void optimizer_norm(struct step_optimizer *n, const struct params *p,
                    const struct process_groups *groups, double clip);

/* The rates of the next update. age: updates since the moments were zero. */
struct adamw_rates optimizer_rates(const struct train_optimizer *o, double lr, int64_t age);

/* Clip by *n and update weights and moments with the rates in it. Collective over dp under ZeRO:
 * `weights` sends them. */
void optimizer_update(const struct step_optimizer *n, const struct train_optimizer *o,
                      struct bucket_transfer *weights);

#endif
