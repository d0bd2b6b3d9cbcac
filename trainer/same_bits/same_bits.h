/*
 * trainer/same_bits/same_bits.h - --same-bits N: a run's losses, norms and checkpoints have the
 * same bits as those of a run with tensor degree N, at every layout whose tensor degree divides N.
 *
 * Every sum that a layout could cut follows one binary tree (kernels/cpu/tree_reduce.h): over N
 * tensor shards for row layers, gradients of column layers' inputs and the loss; over N blocks of
 * rows for gradients of norms and of biases on the residual; over gradient groups for
 * gradients and the loss of a step. A gradient group is one microbatch, or if the batch has an odd
 * factor, that number of microbatches, added one after the other. Every rank has aligned subtrees,
 * so dp, tp and N are powers of two. The order of the sums is: gradient groups, dp, holders of the
 * same KV heads, both ends of a tied embedding, and last the norm, over a fixed list. The bits
 * depend on N, --micro, --batch, --seq, --dtype and the processor.
 */
#ifndef TRAINER_SAME_BITS_SAME_BITS_H
#define TRAINER_SAME_BITS_SAME_BITS_H

#include "layout/layout.h"
#include "trainer/config.h"
#include "trainer/data_parallel/params.h"
#include "trainer/process_groups.h"

/* Microbatches of a gradient group; 1 when c->same_bits is 0. */
int64_t same_bits_group(const struct train_config *c);

/* *sum gets the loss of all dp ranks' microbatches; losses has those of this rank's and is
 * overwritten. Both are device memory. Collective over dp. */
void same_bits_loss(double *sum, double *losses, const struct train_config *c, struct comm *dp,
                    const struct kernel_queue *k);

/* Sums of gradients that follow those over dp: holders of the same KV heads, ends of a pipeline. */
void same_bits_reduce(const struct params *p, const struct process_groups *groups);

/* *sum, in device memory, gets the sum of squares of all gradients, in the fixed order. Collective
 * over the ranks of a replica. */
void same_bits_squares(double *sum, const struct params *p, const struct process_groups *groups);

#endif
