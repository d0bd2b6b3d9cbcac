/*
 * trainer/data_parallel/zero_buckets.h - state dealt over the dp ranks (Rajbhandari et al. 2020).
 *
 * zero1 deals the optimizer's: gradients are reduced to the rank that owns the rows, it updates
 * them, and the new weights go round. That is what an all-reduce sends, in two halves with the
 * update between them; in bf16 the masters stay with their owners, and the second half is bf16
 * but for what layers read in fp32. zero3 deals weights and gradients too; see
 * trainer/data_parallel/fsdp_units.h.
 *
 * A rank owns rows of every tensor, as the layout cuts them, so that a checkpoint has boxes and
 * never intervals of a bucket. Tensors go in buckets through a pack, where what a rank owns lies
 * together: part r is rank r's pieces, one after the other.
 *
 * Under cp an owner has as many twins as cp ranks, which have seen other tokens: of what they own,
 * a dp-th of everything, they add up the gradients among themselves. All make the same update.
 */
#ifndef TRAINER_DATA_PARALLEL_ZERO_BUCKETS_H
#define TRAINER_DATA_PARALLEL_ZERO_BUCKETS_H

#include "comm/collective.h"
#include "trainer/data_parallel/params.h"
#include "trainer/process_groups.h"

/* Buckets on their way through the packs: gradients to the ranks that own them, summed over dp and
 * cp, or the owners' weights to all. */
struct zero_way {
    bool weights;
    struct zero_lane {
        const struct bucket *bucket; /* NULL: the pack is free */
        struct device_event *packed, *sent;
    } lanes[PARAMS_PACKS_MAX];
};

/* Open the events; p's queues are set. Nothing without ZeRO. Close also after a failure. */
tp_status zero_open(struct zero_way *way, const struct params *p, bool weights, struct tp_err *err);
void zero_close(struct zero_way *way);

/* Send a bucket, by its number. Waits for the one that has its pack now, and does not wait for this
 * one. Buckets are sent in the same order on all ranks. */
void zero_send(const struct params *p, const struct parallel *par, struct zero_way *way,
               int bucket);

/* Wait for all that was sent: sums and weights are then in their place. */
void zero_land(const struct params *p, const struct parallel *par, struct zero_way *way);

/* Once every rank has the weights that it owns (masters, in bf16): make of them what layers read.
 * Collective over dp under zero1, else nothing is sent. */
void zero_start(struct params *p, const struct parallel *par, struct zero_way *weights);

/* ---- packs ---- */

/* All gradients of a bucket, to pack[n_owners][b->each]. */
void zero_pack_grads(const struct params *p, const struct bucket *b, float *pack);

/* Add the sums of the gradients that this rank owns, from its part of a pack, to where it keeps
 * them. */
void zero_add_sums(const struct params *p, const struct bucket *b, const float *part);

/* The weights of a bucket that rank `me` owns, to its part of pack[n_owners][b->weights_each]; and
 * everyone's from there to where layers read them. */
void zero_pack_weights(const struct params *p, const struct bucket *b, int me, float *pack);
void zero_unpack_weights(const struct params *p, const struct bucket *b, const float *pack);

#endif
