/*
 * kernels/cpu/attention_lanes.h - what attention in bf16 does with a square of scores between its
 * products. For processors that have UNIT_AVX512_BF16 alone. Inside kernels/cpu/.
 *
 * Squares are transposed: [ATTENTION_BLOCK keys][ATTENTION_BLOCK query rows]. So a lane is a query
 * row, and maxima and sums over keys need no sums over lanes. Scores are in units of ln 2: their
 * exponentials are powers of two.
 */
#ifndef KERNELS_CPU_ATTENTION_LANES_H
#define KERNELS_CPU_ATTENTION_LANES_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/cpu/attention_tile.h"

/* Numbers of the query rows of a block. */
typedef float attention_lanes[ATTENTION_BLOCK];

/* The products take squares of bf16 as `pairs` along keys, [ATTENTION_BLOCK / 2][ATTENTION_BLOCK],
 * and as `rows` of keys, [ATTENTION_BLOCK][ATTENTION_BLOCK]. */

/* One step of the online softmax over `keys` more keys: probabilities 2^(s - max) as pairs, max and
 * sum of all keys so far, and by how much earlier sums shrink. max and sum begin as -infinity and
 * 0. With `causal` key k counts for rows k and later. Keys from `keys` to an even number have
 * probability 0. */
void attention_lanes_softmax(uint32_t *pairs, const float *s, int64_t keys, bool causal,
                             attention_lanes max, attention_lanes sum, attention_lanes shrink);

/* x[n][ATTENTION_BLOCK] by a factor of each lane. */
void attention_lanes_scale(float *x, int64_t n, const attention_lanes by);

/* Probabilities in place of scores: s = 2^(s - lse); and in bf16 as rows. */
void attention_lanes_probabilities(float *s, uint16_t *rows, int64_t keys, bool causal,
                                   const attention_lanes lse);

/* Gradients of the scores, p (dp - delta), as pairs and rows. */
void attention_lanes_gradient(uint32_t *pairs, uint16_t *rows, const float *p, const float *dp,
                              int64_t keys, const attention_lanes delta);

#endif
