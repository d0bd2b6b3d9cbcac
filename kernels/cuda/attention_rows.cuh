/*
 * kernels/cuda/attention_rows.cuh - which rows of an attention a block has, which others they see,
 * and where these are in memory. A block has some rows of its own, of one head in one sequence, and
 * passes over the others in tiles.
 */
#ifndef KERNELS_CUDA_ATTENTION_ROWS_CUH
#define KERNELS_CUDA_ATTENTION_ROWS_CUH

#include "kernels/attention.h"
#include "kernels/cuda/launch.cuh"

/* Rows of one head in one sequence: row i is at ((at + i) * ld + col) of its matrix. */
struct attention_rows {
    int64_t at, col, lse_at; /* lse_at, of queries: where row 0 is in lse */
    int rows, batch, head;
    int first, end; /* the block's own rows: first .. end - 1 */
};

/* Rows from one sequence to the next. */
static __host__ __device__ inline int64_t attention_query_step(const struct attention *a)
{
    return a->q_step ? a->q_step : a->seq;
}

static __device__ inline int attention_keys(const struct attention *a)
{
    return (int)(a->keys ? a->keys : a->seq);
}

/* The keys that query `row` sees: 0 .. n - 1. */
static __device__ inline int attention_seen(const struct attention *a, int row)
{
    return a->keys ? (int)a->keys : row + 1;
}

/* The first of them that a window leaves. */
static __device__ inline int attention_first(const struct attention *a, int row)
{
    return a->window > 0 && row + 1 > a->window ? (int)(row + 1 - a->window) : 0;
}

static __device__ inline bool attention_sees(const struct attention *a, int row, int key)
{
    return key < attention_seen(a, row) && key >= attention_first(a, row);
}

static __host__ __device__ inline int64_t attention_parts(int64_t rows, int64_t own)
{
    return (rows + own - 1) / own;
}

/* How many blocks with so many own rows there are, over all sequences and heads. */
static __host__ __device__ inline int64_t attention_query_blocks(const struct attention *a,
                                                                 int64_t own)
{
    return a->batch * a->heads * attention_parts(a->seq, own);
}

static __host__ __device__ inline int64_t attention_key_blocks(const struct attention *a,
                                                               int64_t own)
{
    return a->batch * a->kv_heads * attention_parts(a->keys ? a->keys : a->seq, own);
}

static __device__ inline struct attention_rows attention_head_queries(const struct attention *a,
                                                                      int batch, int head)
{
    struct attention_rows q = {};

    q.at = batch * attention_query_step(a);
    q.col = head * a->head_dim;
    q.rows = (int)a->seq;
    q.lse_at = (batch * a->heads + head) * attention_query_step(a);
    q.batch = batch;
    q.head = head;
    return q;
}

static __device__ inline struct attention_rows attention_head_keys(const struct attention *a,
                                                                   int batch, int head)
{
    struct attention_rows k = {};

    k.at = batch * (a->k_step ? a->k_step : attention_keys(a));
    k.col = head * a->head_dim;
    k.rows = attention_keys(a);
    k.batch = batch;
    k.head = head;
    return k;
}

/* Part number `part` of a head's queries, `own` rows of them: a block's own. The last queries come
 * first, because they see most keys. */
static __device__ inline struct attention_rows attention_queries_part(const struct attention *a,
                                                                      int own, int batch, int head,
                                                                      int64_t part)
{
    struct attention_rows q = attention_head_queries(a, batch, head);

    q.first = (int)(attention_parts(a->seq, own) - 1 - part) * own;
    q.end = q.first + own < q.rows ? q.first + own : q.rows;
    return q;
}

/* Block number b's own queries: part 0 of every head comes first. */
static __device__ inline struct attention_rows attention_queries(const struct attention *a, int own,
                                                                 int64_t b)
{
    const int64_t heads = a->batch * a->heads;

    return attention_queries_part(a, own, (int)(b % heads / a->heads), (int)(b % a->heads),
                                  b / heads);
}

/* The keys that these queries see. */
static __device__ inline struct attention_rows attention_keys_of(const struct attention *a,
                                                                 const struct attention_rows *q)
{
    struct attention_rows k =
        attention_head_keys(a, q->batch, (int)(q->head / (a->heads / a->kv_heads)));

    k.rows = attention_seen(a, q->end - 1);
    return k;
}

/* Part number `part` of a head's keys, `own` rows of them: a block's own. */
static __device__ inline struct attention_rows attention_keys_part(const struct attention *a,
                                                                   int own, int batch, int head,
                                                                   int64_t part)
{
    struct attention_rows k = attention_head_keys(a, batch, head);

    k.first = (int)part * own;
    k.end = k.first + own < k.rows ? k.first + own : k.rows;
    return k;
}

/* Block number b's own keys: part 0 of every head comes first. */
static __device__ inline struct attention_rows attention_own_keys(const struct attention *a,
                                                                  int own, int64_t b)
{
    const int64_t heads = a->batch * a->kv_heads;

    return attention_keys_part(a, own, (int)(b % heads / a->kv_heads), (int)(b % a->kv_heads),
                               b / heads);
}

/* The first tile of n keys that the block's own queries see, and the end of the queries that see
 * its own keys. */
static __device__ inline int attention_first_tile(const struct attention *a,
                                                  const struct attention_rows *q, int n)
{
    return attention_first(a, q->first) / n * n;
}

static __device__ inline int attention_queries_end(const struct attention *a,
                                                   const struct attention_rows *k)
{
    int64_t end = k->end - 1 + a->window;

    return (int)(a->window > 0 && end < a->seq ? end : a->seq);
}

/* The queries of one of the heads that read these keys. */
static __device__ inline struct attention_rows attention_queries_of(const struct attention *a,
                                                                    const struct attention_rows *k,
                                                                    int number)
{
    return attention_head_queries(a, k->batch, (int)(k->head * (a->heads / a->kv_heads)) + number);
}

#endif
