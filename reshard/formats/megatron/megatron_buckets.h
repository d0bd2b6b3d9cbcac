/*
 * reshard/formats/megatron/megatron_buckets.h - where parameters are in a flat buffer of
 * Megatron-LM's distributed optimizer (megatron/core/distributed/param_and_grad_buffer.py).
 *
 * A buffer is cut into buckets. A parameter begins at a multiple of 64 elements of its bucket. A
 * bucket ends with the parameter that fills it; an embedding that the first and the last stage
 * share has one of its own. Positions here are in the buffer without the padding between buckets,
 * as files have it. They are elements.
 */
#ifndef RESHARD_FORMATS_MEGATRON_MEGATRON_BUCKETS_H
#define RESHARD_FORMATS_MEGATRON_MEGATRON_BUCKETS_H

#include <stdbool.h>
#include <stdint.h>

/* A parameter of a buffer. */
struct megatron_slot {
    int64_t n;     /* elements */
    bool shared;   /* the embedding that the first and the last stage share */
    int64_t begin; /* is found */
};

/* How buckets end: by known sizes, or when they have `full` elements (0: never). */
struct megatron_bucket_rule {
    const int64_t *sizes; /* NULL: not known */
    int n_sizes;
    int64_t full;
};

/* `full` of the rule of a chunk: the first one of the first stage alone has several buckets. size,
 * buckets: as in struct megatron_args; all: elements of all chunks of the rank. */
int64_t megatron_buckets_full(bool is_first, int64_t size, int64_t buckets, int64_t all);

/* Find where slots[0 .. n - 1] begin, which are in the order of the buffer: the opposite of that of
 * modules. Returns the end of the last one. */
int64_t megatron_buckets_place(struct megatron_slot *slots, int n,
                               const struct megatron_bucket_rule *rule);

#endif
