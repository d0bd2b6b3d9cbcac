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

/* Fill *n: the L2 norm of the gradients of all parameters of the model; each element counts once.
 * Collective over the ranks of a replica; all ranks get the same. clip: the largest norm; 0: no
 * limit. */
void optimizer_norm(struct step_optimizer *n, const struct params *p,
                    const struct process_groups *groups, double clip);

struct optimizer_step {
    const struct train_optimizer *options;
    int64_t age; /* updates since the moments were zero */
    double lr;
};

/* Clip by *n and update weights and moments. Collective over dp under ZeRO: `weights` sends them.
 */
void optimizer_update(const struct step_optimizer *n, const struct optimizer_step *s,
                      struct bucket_transfer *weights);

#endif
