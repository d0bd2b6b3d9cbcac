/*
 * trainer/data_parallel/grad_reduction.h - the sum of gradients over the ranks that hold the same
 * parameters, during the backward pass.
 *
 * A step's backward passes finish layers from the last to the first, which is the list of
 * parameters from its end to its beginning. The list is divided into buckets (struct params). When
 * the last microbatch has passed all layers of a bucket, the bucket's gradients on this rank are
 * final. Sums within a replica (shared KV heads; under sp tensors that are not cut) are queued
 * first, then the sum over replicas on the communication queue, and backward continues. Under ZeRO
 * a bucket is sent to its owners (trainer/data_parallel/bucket_transfer.h).
 *
 * All ranks have the same buckets in the same order, so they need no other agreement. The gradient
 * of a tied head is summed over both ends of the pipeline, which waits for another stage: its
 * bucket is left for the end, when this stage has sent everything.
 */
#ifndef TRAINER_DATA_PARALLEL_GRAD_REDUCTION_H
#define TRAINER_DATA_PARALLEL_GRAD_REDUCTION_H

#include "trainer/data_parallel/bucket_transfer.h"
#include "trainer/data_parallel/params.h"
#include "trainer/process_groups.h"

struct grad_reduction {
    const struct params *params;
    const struct process_groups *parallel;
    struct bucket_transfer *grads; /* with ZeRO; borrowed */
    int n_left;                    /* buckets that are not started: the first of the list */
    struct device_event *ready, *done;
};

/* For steps over the params of `grads`, which transfers gradients under ZeRO; borrowed. Close also
 * after a failure. */
tp_status grad_reduction_open(struct grad_reduction *r, struct bucket_transfer *grads,
                              struct tp_err *err);
void grad_reduction_close(struct grad_reduction *r);

/* A step begins. */
void grad_reduction_begin(struct grad_reduction *r);

/* The gradients of a unit (struct param) and of all later ones are final on this rank. Starts every
 * bucket that is complete. */
void grad_reduction_ready(struct grad_reduction *r, int unit);

/* Start what is left and wait for all. Gradients are then sums over all replicas, with ZeRO those
 * that this rank owns. */
void grad_reduction_end(struct grad_reduction *r);

/* Collectives over tp that a step's reduction makes. */
int64_t grad_reduction_partial_calls(const struct params *p);

#endif
