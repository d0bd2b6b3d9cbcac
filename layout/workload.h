/*
 * layout/workload.h - what a training step computes, at whatever layout. layout/workload_check.h
 * says at which layouts it can run.
 */
#ifndef LAYOUT_WORKLOAD_H
#define LAYOUT_WORKLOAD_H

#include <stdbool.h>
#include <stdint.h>

#include "layout/dtype.h"
#include "layout/recompute.h"
#include "layout/spec.h"

/* A batch or a sequence length of 0 is not known, because another trainer sets it. */
struct workload {
    enum dtype dtype;
    int64_t seq_length;        /* tokens in a sequence */
    int64_t global_batch_size; /* sequences in a step, over all ranks */
    int64_t micro_batch_size;  /* sequences in a microbatch of a dp rank; 0: see workload_micro */
    enum recompute recompute;
    int threads;     /* kernel threads of a rank on CPUs; 0: as many as its memory holds */
    int same_bits;   /* emulated tensor-parallel degree (layout/same_bits.h); 0: off */
    bool keeps_bf16; /* the device does, of a bf16 run (kernels/ops.h); not the CPU */
};

/* The defaults of tp-train. */
struct workload workload_default(void);

/* Sequences in a microbatch: micro_batch_size, otherwise all that a dp rank has in a step. With
 * same_bits the default is 1, because the bits depend on it, so it must not depend on the layout.
 * 0: the batch is not known. */
int64_t workload_micro(const struct workload *w, const struct spec *s);

/* Microbatches that a dp rank runs in a step. 0: the batch is not known. */
int64_t workload_micros(const struct workload *w, const struct spec *s);

#endif
