/*
 * trainer/sizing/memory.h - the bytes that a rank of tp-train needs, counted before anything is
 * allocated.
 *
 * The code that takes the buffers counts them (trainer/sizing/buffer_pool.h). A layer is counted
 * once, so the cost does not depend on the number of layers or ranks.
 */
#ifndef TRAINER_SIZING_MEMORY_H
#define TRAINER_SIZING_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "core/arena.h"
#include "core/err.h"
#include "layout/model.h"
#include "layout/spec.h"
#include "layout/workload.h"
#include "trainer/sizing/buffer_pool.h"
#include "trainer/sizing/param_count.h"
#include "trainer/sizing/rank_dims.h"

struct memory_need {
    int64_t params, grads, master, moments; /* this rank's shard, and its buckets or FSDP units */
    int64_t activations;                    /* kept from forward to backward */
    int64_t workspace;  /* reused by every layer: logits, gradients of one layer, kernels' own */
    int64_t per_thread; /* of workspace, for each kernel thread */
    int64_t staging;    /* copy of the state that is being saved */
    int64_t overhead;   /* program, libraries, tables */
    int64_t total;
};

/* 2 EiB. */
#define MEMORY_MOST (INT64_MAX / 4)

/* A model whose ranks are counted. It keeps the last count, so only one thread at a time uses
 * it. */
struct memory_model {
    const struct model *model; /* borrowed */
    struct rank_dims_cuts cuts;
    struct param_tensors tensors;
    struct param_units units; /* of the last count */
    bool has_units;
};

/* Lives in the arena. Errors as model_params. */
tp_status memory_model_make(struct memory_model *out, const struct model *m, struct arena *arena,
                            struct tp_err *err);

/* What the first rank of a pipeline stage needs; no other rank of the stage needs more. */
struct memory_rank {
    struct rank_dims dims;
    struct param_sizes params;
    struct buffer_pools pools; /* counted */
};

/* False: it cannot be counted in 64 bits. */
bool memory_rank_count(struct memory_rank *out, struct memory_model *mm, const struct spec *s,
                       const struct workload *w, int pp);

/* Bytes of host memory for a copy of the state that is being saved, and for writing it. */
int64_t memory_staging_bytes(const struct memory_rank *r, const struct spec *s);

/* The stages of which one has the largest rank, in ascending order. Returns their number. */
enum { MEMORY_STAGES = 3 };
int memory_stages(int out[MEMORY_STAGES], int pp);

/* What the largest rank on CPUs needs with w->threads kernel threads, or one, and the cuts of the
 * model's plan (trainer/sizing/gpu_memory.h: on GPUs). If the batch is not known, or too small for
 * one microbatch per rank, the number of microbatches is the most that a pipeline can keep. saves:
 * the run saves checkpoints, from a copy of the state. total is MEMORY_MOST when the bytes cannot
 * be counted in 64 bits. */
struct memory_need memory_estimate(struct memory_model *mm, const struct spec *s,
                                   const struct workload *w, bool saves);

#endif
