/*
 * layout/memory.h - bytes that a rank of tp-train needs, by arithmetic, before anything is
 * allocated.
 */
#ifndef LAYOUT_MEMORY_H
#define LAYOUT_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "layout/model.h"
#include "layout/spec.h"
#include "layout/workload.h"

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

/* 2 EiB. */
#define MEMORY_MOST (INT64_MAX / 4)

/* The need of the largest rank, with one kernel thread, cut as m->plan says. A batch that is not
 * known, or too small for a microbatch a rank, stands for as many of those as a pipeline can keep.
 * saves: checkpoints, from a copy of the state. What cannot be counted in 64 bits is MEMORY_MOST in
 * total. */
struct memory_need memory_estimate(const struct model *m, const struct spec *s,
                                   const struct workload *w, bool saves);

#endif
