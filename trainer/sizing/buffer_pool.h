/*
 * trainer/sizing/buffer_pool.h - a block of memory that many buffers are taken from at the start.
 *
 * The same code takes buffers and counts them: from a pool without memory it only counts. So what
 * a rank needs is known to the byte before anything is allocated, and a step allocates nothing.
 */
#ifndef TRAINER_SIZING_BUFFER_POOL_H
#define TRAINER_SIZING_BUFFER_POOL_H

#include <stdint.h>

/* What a buffer is for. */
enum buffer_kind {
    BUFFER_WEIGHTS,     /* the weights that this rank keeps, in the run's dtype */
    BUFFER_MASTERS,     /* bf16: the weights in fp32 */
    BUFFER_GRADS,       /* gradients that a step sums */
    BUFFER_MOMENTS,     /* of AdamW */
    BUFFER_BUCKETS,     /* zero1: gradients and weights while they are sent */
    BUFFER_UNITS,       /* zero3: weights and gradients of one FSDP unit, and while they are sent */
    BUFFER_ACTIVATIONS, /* kept from a forward to its backward pass */
    BUFFER_WORKSPACE,   /* used by one layer after another */
    BUFFER_NUMBERS,     /* losses and norms */
    BUFFER_HOST,        /* what a step exchanges with the host */
    BUFFER_STAGING,     /* a copy of the state that is being saved */
    BUFFER_KINDS,
};

struct buffer_pool {
    char *base;    /* NULL: it only counts */
    int64_t used;  /* bytes; INT64_MAX after an overflow */
    int64_t times; /* while counting: each buffer counts this many times; 0: once */
    int64_t bytes[BUFFER_KINDS];
};

/* The memory of a rank. */
struct buffer_pools {
    struct buffer_pool shared; /* for collectives */
    struct buffer_pool own;
    struct buffer_pool pinned; /* of the host, for copies to and from the device */
};

/* n elements of `size` bytes, 64-byte aligned; NULL while counting. The memory is zero at first. */
void *buffer_pool_take(struct buffer_pool *p, enum buffer_kind kind, int64_t n, int64_t size);

/* For code that takes the same buffers n times. Returns how many times to run it: n; or once if
 * the pools only count (but 0 for n = 0), and then the buffers that are taken until
 * buffer_pools_repeat_end count n times. Calls may be nested. */
int64_t buffer_pools_repeat(struct buffer_pools *p, int64_t n);
void buffer_pools_repeat_end(struct buffer_pools *p, int64_t n);

/* Bytes of a kind in all pools. */
int64_t buffer_pools_bytes(const struct buffer_pools *p, enum buffer_kind kind);

#endif
