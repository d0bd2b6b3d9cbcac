/*
 * trainer/same_bits/emulated_shards.h - sums over the tensor shards that a rank plays with
 * --same-bits, along the tree that sums over ranks follow: a rank adds the aligned subtree that is
 * its own, comm the rest, so that however many ranks share the shards, the bits are those of a rank
 * each.
 */
#ifndef TRAINER_SAME_BITS_EMULATED_SHARDS_H
#define TRAINER_SAME_BITS_EMULATED_SHARDS_H

#include <stdint.h>

/* out[i] = sum over s of parts[s * stride + i], for i < n. out may be parts. */
void shards_sum(float *out, const float *parts, int shards, int64_t stride, int64_t n);

#endif
