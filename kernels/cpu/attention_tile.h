/*
 * kernels/cpu/attention_tile.h - what attention computes at a time: a block of query rows of one
 * head and the keys that they attend to. Inside kernels/cpu/.
 *
 * ATTENTION_BLOCK query rows and the keys up to the last of these rows (or, without a mask, all
 * keys) are one product, so blocks to the right of the diagonal are never computed. Scores of a
 * block are ATTENTION_BLOCK x keys and live in the second-level cache for the lengths trained here.
 *
 * Keys and values of a head are transposed once, because small products of the form A B run at 108
 * GFLOP/s where A B^T runs at 50 to 90 (oneDNN 2.6, one Zen 4 core, 64 x 64 .. 256 x 64). Rows of
 * scores are padded to ATTENTION_LANES, so that loops over them are whole vectors.
 */
#ifndef KERNELS_CPU_ATTENTION_TILE_H
#define KERNELS_CPU_ATTENTION_TILE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"
#include "device/device.h"
#include "kernels/attention.h"

enum { ATTENTION_BLOCK = 64 };

/* A thread's part of the scratch memory; padded: to whole vectors. */
struct attention_scratch {
    const struct device_queue *queue; /* that the products run on */
    float *kt, *vt;   /* keys and values of one head, [head_dim][ldkt] of the call's type */
    int64_t ldkt;     /* padded keys */
    float *s, *ds;    /* scores and their gradient, [ATTENTION_BLOCK][padded cols] */
    uint16_t *p16;    /* either in bf16 */
    float *slope;     /* with a cap: its derivative at each score, as s */
    float *o, *delta; /* [ATTENTION_BLOCK][head_dim], [ATTENTION_BLOCK] */
    int64_t kt_of;    /* the sequence and kv head in kt and vt; -1: none */
};

/* One block of rows of one head: where everything is. */
struct attention_tile {
    const struct attention *a;
    const struct attention_scratch *w; /* or NULL */
    int64_t row0, rows, cols;          /* query rows row0 .. row0 + rows - 1; keys 0 .. cols - 1 */
    int64_t ld;                        /* padded cols: from one row of scores to the next */
    const char *q, *k, *v;             /* q at row0, k and v at their first key */
    char *out;
    float *sum; /* instead of out, or NULL */
    float *lse;
};

/* Bytes of an element of q, k, v and out. */
static inline int64_t attention_width(const struct attention *a)
{
    return a->type == DTYPE_F32 ? 4 : 2;
}

/* Rows from one sequence to the next, of q and of k and v. */
static inline int64_t attention_q_step(const struct attention *a)
{
    return a->q_step ? a->q_step : a->seq;
}

static inline int64_t attention_k_step(const struct attention *a)
{
    return a->k_step ? a->k_step : a->keys ? a->keys : a->seq;
}

/* Keys that row i of a tile attends to. */
static inline int64_t attention_tile_seen(const struct attention_tile *t, int64_t i)
{
    return t->a->keys ? t->a->keys : t->row0 + i + 1;
}

/* The first key that row i of a tile attends to. */
static inline int64_t attention_tile_first(const struct attention_tile *t, int64_t i)
{
    int64_t first = t->row0 + i + 1 - t->a->window;

    return t->a->window && first > 0 ? first : 0;
}

/* Floats that a thread needs. */
int64_t attention_scratch_floats(const struct attention *a);

/* A thread's part of the scratch memory of all threads, with no head loaded. */
void attention_scratch_of(struct attention_scratch *w, const struct attention *a,
                          const struct device_queue *q, float *scratch, int thread);

/* Transpose the keys (and values, where wanted) of kv head `kv` of sequence b into the scratch,
 * unless they are there already. */
void attention_load_head(struct attention_scratch *w, const struct attention *a, int64_t b,
                         int64_t kv, bool values);

/* The tile of query head h of sequence b that begins with row0. */
void attention_tile_at(struct attention_tile *t, const struct attention *a,
                       const struct attention_scratch *w, int64_t b, int64_t h, int64_t row0);

/* Scores s = scale q k^T of the tile, with a cap bent by it; -infinity before a row's first key.
 * Those right of the diagonal are not meaningful. */
tp_status attention_tile_scores(const struct attention_tile *t, struct tp_err *err);

/* Make the result of row i from o[head_dim], its sum of values; `max` and `sum` are those of its
 * scores in this call. */
void attention_finish_row(const struct attention_tile *t, const float *o, int64_t i, float max,
                          float sum);

#endif
