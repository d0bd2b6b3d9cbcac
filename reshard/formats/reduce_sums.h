/*
 * reshard/formats/reduce_sums.h - bring checksums that several processes gathered together on rank
 * 0.
 */
#ifndef RESHARD_FORMATS_REDUCE_SUMS_H
#define RESHARD_FORMATS_REDUCE_SUMS_H

#include "comm/comm.h"

/* Add the n words of another process to ours; n is a multiple of the group they come in. */
typedef void (*reduce_sums_fn)(uint64_t *into, const uint64_t *from, int64_t n);

/* On rank 0 words[i] becomes the combination over all processes; elsewhere it stays. Collective,
 * the same n and group everywhere; works in slices, so that memory does not grow with n. */
tp_status reduce_sums(struct comm *c, uint64_t *words, int64_t n, int group, reduce_sums_fn add,
                      struct tp_err *err);

#endif
