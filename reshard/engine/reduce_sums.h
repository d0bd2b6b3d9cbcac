/*
 * reshard/engine/reduce_sums.h - combines the checksums of several processes on rank 0.
 */
#ifndef RESHARD_ENGINE_REDUCE_SUMS_H
#define RESHARD_ENGINE_REDUCE_SUMS_H

#include "comm/control.h"

/* Add the n words of another process to ours. */
typedef void (*reduce_sums_fn)(uint64_t *into, const uint64_t *from, int64_t n);

/* Words that belong together in groups, as chunk_sums_add takes them. */
struct reduce_sums {
    uint64_t *words; /* NULL, but not on rank 0: this process has only zeros */
    int64_t n;
    int group; /* words in a group; n is a multiple of it */
    reduce_sums_fn add;
};

/* On rank 0 the words become the sum over all processes; elsewhere they stay. Collective, with the
 * same n and group everywhere. Works in slices, so the memory it needs does not grow with n. */
tp_status reduce_sums(struct comm_control *c, const struct reduce_sums *sums, struct tp_err *err);

/* The same for n / 2 digests (ckpt/digest.h). */
tp_status reduce_digests(struct comm_control *c, uint64_t *words, int64_t n, struct tp_err *err);

#endif
