/*
 * trainer/zero.h - the optimizer's state dealt over the dp ranks (Rajbhandari et al. 2020, ZeRO
 * stage 1): gradients are reduced to the rank that owns the rows, it updates them, and the new
 * weights go round. That is what an all-reduce sends, in two halves with the update between them.
 *
 * A rank owns rows of every tensor, as the layout cuts them, so that a checkpoint has boxes and
 * never intervals of a bucket. Tensors go in buckets through p->pack, where what a rank owns lies
 * together: part r is rank r's pieces, one after the other.
 *
 * Under cp an owner has as many twins as cp ranks, which have seen other tokens: of what they own,
 * a dp-th of everything, they add up the gradients among themselves. All make the same update.
 */
#ifndef TRAINER_ZERO_H
#define TRAINER_ZERO_H

#include "comm/comm.h"
#include "core/err.h"
#include "trainer/parallel.h"
#include "trainer/params.h"

/* Sum the gradients over dp and cp: this rank's pieces of them are then right, in their place. */
tp_status zero_reduce(const struct params *p, const struct parallel *par, struct tp_err *err);

/* Every rank's updated weights to all. */
tp_status zero_gather(const struct params *p, struct comm *dp, struct tp_err *err);

#endif
