/*
 * kernels/cpu/attention_bf16.h - attention by AVX-512 BF16, with products by AMX where the
 * processor has it, in squares of ATTENTION_BLOCK query rows and as many keys that stay in the
 * first-level cache (Dao 2023). Inside kernels/cpu/.
 *
 * Every square is computed transposed, [keys][query rows], so that its maxima, sums and
 * exponentials are vectors of query rows, and so that keys and values are operands as they are in
 * memory.
 */
#ifndef KERNELS_CPU_ATTENTION_BF16_H
#define KERNELS_CPU_ATTENTION_BF16_H

#include <stdbool.h>
#include <stdint.h>

#include "device/device.h"
#include "kernels/attention.h"

/* Whether the processor has the unit, the heads' shape suits it, no window hides keys, and scores
 * have no cap. */
bool attention_bf16_usable(const struct device_queue *q, const struct attention *a);

/* Floats of scratch that a thread needs. */
int64_t attention_bf16_floats(const struct attention *a);

/* A thread's part of the scratch memory, with no head loaded. */
struct attention_bf16 {
    bool amx;                  /* products are AMX's */
    uint16_t *k_rows, *v_rows; /* keys and values as operands whose sums run along keys: */
    int64_t row, step;   /* ... from one of head_dim, and from one pair of keys, to the next */
    uint32_t *q, *d_out; /* of a block of rows, transposed: [head_dim / 2][block] */
    uint32_t *q_pairs, *d_out_pairs; /* panels of pairs along rows, [block / 2][64 of head_dim] */
    float *s, *ds, *sum; /* scores, their gradient, [block keys][block]; [head_dim][block] */
    float *rows;         /* [block][width]: sum as rows */
    uint32_t *pairs;     /* probabilities, or gradients, as kernels/cpu/attention_lanes.h says */
    uint16_t *p_rows, *ds_rows;
    int64_t width;  /* head_dim, padded to whole vectors */
    int64_t loaded; /* the sequence and kv head in k_rows and v_rows; -1: none */
};

void attention_bf16_scratch(struct attention_bf16 *w, const struct attention *a,
                            const struct device_queue *q, float *scratch, int thread);

/* The whole of query head h of sequence b, forward; of all query heads of kv head `kv`,
 * backward. */
void attention_bf16_forward(const struct attention *a, struct attention_bf16 *w, int64_t b,
                            int64_t h);
void attention_bf16_backward(const struct attention_backward *g, struct attention_bf16 *w,
                             int64_t b, int64_t kv);

#endif
