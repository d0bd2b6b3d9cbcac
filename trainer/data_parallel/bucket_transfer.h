/*
 * trainer/data_parallel/bucket_transfer.h - buckets between the dp ranks under ZeRO (Rajbhandari et
 * al. 2020): gradients to the ranks that own them, weights from their owners to all ranks.
 *
 * Under zero1 the optimizer state is partitioned. A reduce-scatter gives each rank the summed
 * gradients of the rows that it owns, the rank updates these rows, and an all-gather gives the new
 * weights to all ranks. Together they send as much as one all-reduce. In bf16 the masters stay with
 * their owners, and the all-gather is bf16, except for what layers read in fp32. zero3 partitions
 * weights and gradients too (trainer/data_parallel/fsdp_units.h), and its buckets are FSDP units.
 *
 * A rank owns rows of every tensor, as the layout cuts them, so that a checkpoint contains boxes
 * and not intervals of a bucket. A bucket is packed into a communication buffer, where the rows of
 * one owner are contiguous: part r is what rank r owns, one entry after the other.
 *
 * Under zero1 the reduce-scatter writes to the bucket's range of the gradient buffer, which is free
 * once the bucket is packed: params_owned says where each gradient is. Nothing is copied again:
 * the norm and AdamW read the gradients there. Under zero3 each microbatch's gradients arrive in
 * the communication buffer, and are added to the sums from there.
 *
 * Under cp the ranks of one cp group own the same rows and have seen other tokens. Under zero1 they
 * sum the gradients that they own among themselves. All make the same update.
 */
#ifndef TRAINER_DATA_PARALLEL_BUCKET_TRANSFER_H
#define TRAINER_DATA_PARALLEL_BUCKET_TRANSFER_H

#include "trainer/data_parallel/params.h"
#include "trainer/process_groups.h"

enum bucket_payload { BUCKET_WEIGHTS, BUCKET_GRADS };

/* A communication buffer. */
struct bucket_buffer {
    float *data;
    const struct param_bucket *bucket; /* on its way; NULL: the buffer is free */
    struct device_event *packed, *sent;
};

struct bucket_transfer {
    enum bucket_payload payload;
    const struct params *params;         /* borrowed, as the next */
    const struct process_groups *groups; /* process groups */
    int n_buffers;
    struct bucket_buffer buffers[PARAM_PACKS_MAX]; /* bucket b uses buffer b % n_buffers */
};

/* p has its queues and its memory. Without ZeRO there is nothing to transfer, and this only
 * initialises. Close also after a failure. */
tp_status bucket_transfer_open(struct bucket_transfer *t, const struct params *p,
                               const struct process_groups *groups, enum bucket_payload payload,
                               struct tp_err *err);
void bucket_transfer_close(struct bucket_transfer *t);

/* Pack a bucket, by its number, and queue its collective. If the buffer is still used by an earlier
 * bucket, that one is received first. All dp ranks send the same buckets in the same order. */
void bucket_transfer_send(struct bucket_transfer *t, int bucket);

/* What is queued from here on runs after the bucket has arrived. Weights are then where layers read
 * them. Returns where this rank's part of the gradients is; NULL for weights, or when the bucket
 * was received already. */
const float *bucket_transfer_receive(struct bucket_transfer *t, int bucket);

/* Receive everything that was sent. */
void bucket_transfer_finish(struct bucket_transfer *t);

/* Once every rank has the weights that it owns (masters, in bf16): make the weights that layers
 * read. t is for weights. Collective over dp under zero1, else nothing is sent. */
void bucket_transfer_start_weights(struct bucket_transfer *t);

#endif
