/*
 * kernels/normal.h - normal numbers by number: each is a function of a key and an index alone.
 * So threads and ranks make any part of a sequence, in any order.
 */
#ifndef KERNELS_NORMAL_H
#define KERNELS_NORMAL_H

#include <stdint.h>

/* The finalizer of SplitMix64 (Steele, Lea and Flood 2014): a bijection that mixes all bits. */
uint64_t normal_mix(uint64_t x);

/* Number `index` of the sequence of `key`: the transform of Box and Muller (1958), with the
 * logarithm and the cosine of the C library. */
double normal_value(uint64_t key, int64_t index);

/* out[i] = (float)(std * normal_value(key, first + i)), bit for bit, in a fraction of the time. */
void normal_fill(float *out, int64_t n, double std, uint64_t key, int64_t first);

#endif
