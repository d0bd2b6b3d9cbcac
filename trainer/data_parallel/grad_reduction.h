/*
 * trainer/data_parallel/grad_reduction.h - the sum of gradients over the ranks that hold the same
 * parameters, under the backward pass.
 *
 * A step's backward passes finish layers from the last to the first, which is the list of
 * parameters from its end to its beginning. The list is cut into buckets (struct params); when the
 * last microbatch has been through all layers of a bucket, its gradients are final but for other
 * ranks' parts. Those within a replica are added here and now (shared KV heads, under sp what is
 * not cut); the sum over replicas is started in the background, and backward goes on. With ZeRO a
 * bucket travels through one of two packs, and arrives at its owners.
 *
 * Every rank that takes part has the same buckets in the same order, so nothing else is agreed on.
 * A tied head's gradient is summed over both ends of the pipeline, which waits for another stage:
 * its bucket is left for reduction_end, when this stage has sent all that it has to send.
 */
#ifndef TRAINER_DATA_PARALLEL_GRAD_REDUCTION_H
#define TRAINER_DATA_PARALLEL_GRAD_REDUCTION_H

#include "trainer/data_parallel/bucket_transfer.h"
#include "trainer/data_parallel/params.h"
#include "trainer/process_groups.h"

struct reduction {
    const struct params *params;
    const struct parallel *parallel;
    struct bucket_transfer *grads; /* with ZeRO; borrowed */
    int n_left;                    /* buckets that are not started: the first of the list */
    struct device_event *ready, *done;
};

/* For steps over the params of `grads`, which transfers gradients under ZeRO; borrowed. Close also
 * after a failure. */
tp_status reduction_open(struct reduction *r, struct bucket_transfer *grads, struct tp_err *err);
void reduction_close(struct reduction *r);

/* A step begins. */
void reduction_begin(struct reduction *r);

/* The gradients of a unit (struct param) are final on this rank; after it comes the layer below.
 * Starts every bucket that is complete. */
void reduction_ready(struct reduction *r, int unit);

/* Start what is left and wait for all. Gradients are then sums over all replicas, with ZeRO those
 * that this rank owns. */
void reduction_end(struct reduction *r);

/* Collectives over tp that a step's reduction makes. */
int64_t reduction_partial_calls(const struct params *p);

#endif
