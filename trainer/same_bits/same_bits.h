/*
 * trainer/same_bits/same_bits.h - --same-bits N: a run's losses, norms and checkpoints are bit for
 * bit those of a run whose tensor degree is N, at every layout that divides it.
 *
 * Every sum that a layout could cut is taken along one binary tree (comm/reduce.h): over N tensor
 * shards for row layers, gradients of column layers' inputs and the loss; over N blocks of rows for
 * what is applied to the residual stream; over leaves for gradients and the loss of a step. A leaf
 * is one microbatch, or as many as the batch's odd factor says, added one after the other. Every
 * rank has aligned subtrees, so dp, tp and N are powers of two. The order of the sums: leaves, dp,
 * then holders of the same KV heads, then both ends of a tied embedding; last the norm, over a
 * fixed list. What the bits depend on: N, --micro, --batch, --seq, --dtype, the processor.
 */
#ifndef TRAINER_SAME_BITS_SAME_BITS_H
#define TRAINER_SAME_BITS_SAME_BITS_H

#include "layout/layout.h"
#include "trainer/config.h"
#include "trainer/data_parallel/params.h"
#include "trainer/process_groups.h"

/* Microbatches of a leaf, and log2 of the leaves that a dp rank has in a step; 1 and 0 when
 * c->same_bits is 0. */
int64_t same_bits_leaf(const struct train_config *c);
int same_bits_levels(const struct train_config *c);

/* *sum gets the loss of all dp ranks' microbatches; losses has this rank's and is overwritten. Both
 * are device memory. Collective over dp. */
void same_bits_loss(double *sum, double *losses, const struct train_config *c, struct comm *dp,
                    const struct kernel_queue *k);

/* Sums of gradients that follow those over dp: holders of the same KV heads, ends of a pipeline. */
void same_bits_reduce(const struct params *p, const struct parallel *par);

/* *sum, in device memory, gets the sum of squares of all gradients, in the one order. Collective
 * over the ranks of a replica. */
void same_bits_squares(double *sum, const struct params *p, const struct parallel *par);

#endif
