/*
 * layout/memory.h - bytes that a rank of tp-train needs, by arithmetic, before anything is
 * allocated.
 */
#ifndef LAYOUT_MEMORY_H
#define LAYOUT_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "layout/dtype.h"
#include "layout/layout.h"
#include "layout/model.h"
#include "layout/recompute.h"

struct memory_need {
    int64_t params, grads, master, moments; /* this rank's shard */
    int64_t activations;                    /* kept from forward to backward */
    int64_t workspace; /* reused by every layer: logits, gradients of one layer */
    int64_t staging;   /* copy of the state that is being saved */
    int64_t overhead;  /* program, libraries, tables */
    int64_t total;
};

/* Elements after which a bucket of gradients that are sent together is closed: few enough that most
 * are on their way while backward still works, enough that what a call costs does not matter. */
enum { MEMORY_BUCKET = 1 << 18 };

/* What a run does with a model and a layout, as far as memory depends on it. */
struct memory_run {
    enum dtype dtype;
    int64_t seq;    /* tokens in a whole sequence */
    int64_t micro;  /* sequences in a microbatch */
    int64_t micros; /* microbatches of a step; 0: unknown, as many as a pipeline can keep */
    int same_bits;  /* tensor shards that there seem to be (tp-train --same-bits); 0: as many as tp
                     */
    enum recompute recompute;
    bool saves; /* checkpoints: from a copy of the state */
};

/* The need of the largest rank, with one kernel thread, cut as m->plan says. */
struct memory_need memory_estimate(const struct model *m, const struct spec *s,
                                   const struct memory_run *run);

#endif
