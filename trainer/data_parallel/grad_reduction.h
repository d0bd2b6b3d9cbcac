/*
 * trainer/data_parallel/grad_reduction.h - the sum of gradients over the ranks that hold the same
 * parameters, during the backward pass.
 *
 * A step's backward passes finish layers from the last to the first, so the list of parameters
 * becomes final from its end to its beginning. The list is divided into buckets (struct params).
 * When the last microbatch has passed all layers of a bucket, the bucket's gradients on this rank
 * are final. Sums within a replica (of shared KV heads, and under sp of tensors that are not cut)
 * are queued first. Then the sum over replicas is queued on the communication queue, and the
 * backward pass continues. Under ZeRO a bucket is sent to its owners
 * (trainer/data_parallel/bucket_transfer.h).
 *
 * All ranks have the same buckets in the same order, so they need not negotiate. The gradient of a
 * tied head is summed over both ends of the pipeline. This sum waits for another stage, so the
 * head's bucket comes last, when this stage has sent everything.
 */
#ifndef TRAINER_DATA_PARALLEL_GRAD_REDUCTION_H
#define TRAINER_DATA_PARALLEL_GRAD_REDUCTION_H

#include "trainer/data_parallel/bucket_transfer.h"
#include "trainer/data_parallel/params.h"
#include "trainer/process_groups.h"

struct grad_reduction {
    const struct params *params;
    const struct process_groups *groups;
    struct bucket_transfer *grads; /* with ZeRO; borrowed */
    int n_left; /* buckets that are not started yet: the first n_left of the list */
    struct device_event *ready, *done;
};

/* Reduce the gradients of the params of `grads`, which transfers them under ZeRO and is borrowed.
 * Close also after a failure. */
tp_status grad_reduction_open(struct grad_reduction *r, struct bucket_transfer *grads,
                              struct tp_err *err);
void grad_reduction_close(struct grad_reduction *r);

/* A step begins. */
void grad_reduction_begin(struct grad_reduction *r);

/* The gradients of a unit (struct param) and of all later ones are final on this rank. Starts every
 * bucket that is complete. */
void grad_reduction_ready(struct grad_reduction *r, int unit);

/* Start the remaining buckets and wait for all. Gradients are then sums over all replicas; with
 * ZeRO, the gradients that this rank owns. */
void grad_reduction_end(struct grad_reduction *r);

#endif
