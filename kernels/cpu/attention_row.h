/*
 * kernels/cpu/attention_row.h - what attention does with single rows between its products. Inside
 * kernels/cpu/. Rows of scores are padded to whole vectors of ATTENTION_LANES.
 */
#ifndef KERNELS_CPU_ATTENTION_ROW_H
#define KERNELS_CPU_ATTENTION_ROW_H

#include <stdint.h>

#include "kernels/cpu/transpose.h"

enum { ATTENTION_LANES = TRANSPOSE_LANES };

/* Softmax over s[0 .. n - 1], not yet divided by the sum, which is returned; zero to ld.
 * *max gets the largest score. */
float attention_softmax_row(float *s, int64_t n, int64_t ld, float *max);

/* s = exp(s - lse) for the n first, zero to ld. */
void attention_probability_row(float *s, float lse, int64_t n, int64_t ld);

/* s = cap tanh(s / cap), and slope = d s / d s before. */
void attention_cap_row(float *restrict s, float *restrict slope, float cap, int64_t n);

/* x *= y. */
void attention_multiply_row(float *restrict x, const float *restrict y, int64_t n);

/* Gradient of the scores before scaling, in place of the probabilities' gradient dp:
 * ds = p (dp - delta). */
void attention_score_gradient(float *dp, const float *p, float delta, int64_t vectors);

void attention_round_row(uint16_t *restrict y, const float *restrict x, int64_t n);

/* y = x by, in f32 or rounded; y = y keep + x by. */
void attention_scale_row_f32(float *y, const float *x, float by, int64_t n);
void attention_scale_row_bf16(uint16_t *y, const float *x, float by, int64_t n);
void attention_merge_row(float *y, float keep, const float *x, float by, int64_t n);

float attention_dot_f32(const float *x, const float *y, int64_t n);
float attention_dot_bf16(const uint16_t *x, const uint16_t *y, int64_t n);

#endif
