/*
 * trainer/data_parallel/bucket_transfer.h - buckets between the dp ranks under ZeRO (Rajbhandari et
 * al. 2020): gradients to the ranks that own them, weights from their owners to all ranks.
 *
 * Under zero1 the optimizer state is partitioned. A reduce-scatter gives each rank the summed
 * gradients of the rows that it owns, the rank updates these rows, and an all-gather gives the new
 * weights to all ranks. Together they send as much as one all-reduce. In bf16 the masters stay with
 * their owners, and the all-gather is bf16, except for the weights that layers read in fp32. zero3
 * partitions weights and gradients too (trainer/data_parallel/fsdp_units.h), and its buckets are
 * FSDP units.
 *
 * With ep, under zero1 every rank updates its experts as a whole, and their buckets are not
 * transferred. zero3 partitions them over the dp x cp / ep ranks that have the same experts; a unit
 * is then two buckets, which are sent one after the other.
 *
 * A rank owns rows of every tensor, as the layout cuts them, so that a checkpoint contains boxes
 * and not intervals of a bucket. A bucket is packed into a communication buffer, where the rows of
 * one owner are contiguous: part r has what rank r owns, one entry after the other.
 *
 * Under zero1 the reduce-scatter writes to the bucket's range of the gradient buffer, which is free
 * once the bucket is packed. The norm and AdamW read the gradients there (params_owned says where),
 * so no further copy is made. Under zero3 each microbatch's gradients arrive in the communication
 * buffer and are added to the sums from there.
 *
 * Under cp the ranks of one cp group own the same rows but have processed different tokens. Under
 * zero1 they sum the gradients of these rows over the cp group, so all make the same update.
 */
#ifndef TRAINER_DATA_PARALLEL_BUCKET_TRANSFER_H
#define TRAINER_DATA_PARALLEL_BUCKET_TRANSFER_H

#include "trainer/data_parallel/params.h"
#include "trainer/process_groups.h"

enum bucket_payload { BUCKET_WEIGHTS, BUCKET_GRADS };

/* A communication buffer. */
struct bucket_buffer {
    float *data;
    const struct param_bucket *bucket; /* being sent; NULL: the buffer is free */
    struct device_event *packed, *sent;
};

struct bucket_transfer {
    enum bucket_payload payload;
    const struct params *params; /* borrowed, like the next field */
    const struct process_groups *groups;
    int n_buffers;
    struct bucket_buffer buffers[PARAM_PACKS_MAX]; /* bucket b uses buffer b % n_buffers; with zero3
                                                      the second one is for experts */
};

/* p must have its queues and its memory already. Without ZeRO there is nothing to transfer, so this
 * only initialises. Close also after a failure. */
tp_status bucket_transfer_open(struct bucket_transfer *t, const struct params *p,
                               const struct process_groups *groups, enum bucket_payload payload,
                               struct tp_err *err);
void bucket_transfer_close(struct bucket_transfer *t);

/* Pack a bucket, by its number, and queue its collective. If an earlier bucket still uses the
 * buffer, that bucket is received first. All dp ranks send the same buckets in the same order. */
void bucket_transfer_send(struct bucket_transfer *t, int bucket);

/* Work that is queued after this call runs after the bucket has arrived. Weights are then where
 * layers read them. Returns where this rank's part of the gradients is; NULL for weights, or when
 * the bucket was received already. */
const float *bucket_transfer_receive(struct bucket_transfer *t, int bucket);

/* Receive everything that was sent. */
void bucket_transfer_finish(struct bucket_transfer *t);

/* Call when every rank has the weights that it owns (masters, in bf16). Makes the weights that
 * layers read. t is for weights. Collective over dp under zero1; else nothing is sent. */
void bucket_transfer_start_weights(struct bucket_transfer *t);

#endif
