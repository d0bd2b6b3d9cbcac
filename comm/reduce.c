/* comm/reduce.c - see comm/reduce.h. */
#include "comm/reduce.h"

#include <string.h>

#include "comm/backend.h"

/* One copy of a loop for each vector width, chosen when the program is loaded. The sanitizers'
 * runtime is not yet up at that time, so their builds have the plain loop alone. */
#if defined(__x86_64__) && !defined(TP_SANITIZE)
#define REDUCE_LOOP __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define REDUCE_LOOP
#endif

enum { BLOCK_BYTES = 4096 }; /* of a partial sum: some of them stay in the first-level cache */

union block {
    float f32[BLOCK_BYTES / sizeof(float)];
    double f64[BLOCK_BYTES / sizeof(double)];
    uint64_t u64[BLOCK_BYTES / sizeof(uint64_t)]; /* sums of i64 wrap */
    int64_t i64[BLOCK_BYTES / sizeof(int64_t)];
};

/* out = a op b; out may be a. */

REDUCE_LOOP static void sum_f32(float *out, const float *a, const float *b, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        out[i] = a[i] + b[i];
}

/* Two levels of the tree at once, for what is summed most: partial sums stay in registers. */
REDUCE_LOOP static void sum4_f32(float *out, const float *a, const float *b, const float *c,
                                 const float *d, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        out[i] = (a[i] + b[i]) + (c[i] + d[i]);
}

REDUCE_LOOP static void sum_f64(double *out, const double *a, const double *b, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        out[i] = a[i] + b[i];
}

REDUCE_LOOP static void sum_u64(uint64_t *out, const uint64_t *a, const uint64_t *b, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        out[i] = a[i] + b[i];
}

REDUCE_LOOP static void max_f32(float *out, const float *a, const float *b, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        out[i] = a[i] > b[i] || a[i] != a[i] ? a[i] : b[i];
}

REDUCE_LOOP static void max_f64(double *out, const double *a, const double *b, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        out[i] = a[i] > b[i] || a[i] != a[i] ? a[i] : b[i];
}

REDUCE_LOOP static void max_i64(int64_t *out, const int64_t *a, const int64_t *b, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        out[i] = a[i] > b[i] ? a[i] : b[i];
}

/* What is reduced: elements lo .. lo + n - 1 of every row. */
struct run {
    const void *const *rows;
    int64_t lo, n;
    enum comm_type type;
    enum comm_op op;
};

static void combine(union block *out, const void *a, const void *b, const struct run *r)
{
    if (r->type == COMM_F32 && r->op == COMM_SUM)
        sum_f32(out->f32, a, b, r->n);
    else if (r->type == COMM_F32)
        max_f32(out->f32, a, b, r->n);
    else if (r->type == COMM_F64 && r->op == COMM_SUM)
        sum_f64(out->f64, a, b, r->n);
    else if (r->type == COMM_F64)
        max_f64(out->f64, a, b, r->n);
    else if (r->op == COMM_SUM)
        sum_u64(out->u64, a, b, r->n);
    else
        max_i64(out->i64, a, b, r->n);
}

static const void *row_of(const struct run *r, int row)
{
    return (const char *)r->rows[row] + r->lo * comm_type_bytes(r->type);
}

/* Rows first .. first + n_rows - 1 along the tree: where their result is, a row itself when it is
 * one, else *out. Blocks behind `out` are for partial results, one a level. */
static const void *reduce_tree(union block *out, const struct run *r, int first, int n_rows)
{
    int left = 1;
    const void *a, *b;

    if (n_rows == 1)
        return row_of(r, first);
    if (n_rows == 4 && r->type == COMM_F32 && r->op == COMM_SUM) {
        sum4_f32(out->f32, row_of(r, first), row_of(r, first + 1), row_of(r, first + 2),
                 row_of(r, first + 3), r->n);
        return out;
    }
    while (2 * left < n_rows)
        left *= 2;
    a = reduce_tree(out, r, first, left);
    b = reduce_tree(out + 1, r, first + left, n_rows - left);
    combine(out, a, b, r);
    return out;
}

void comm_reduce(void *const *dsts, int n_dsts, const void *const *rows, int n_rows, int64_t n,
                 enum comm_type type, enum comm_op op)
{
    int64_t width = comm_type_bytes(type), step = BLOCK_BYTES / width;
    struct run r = { .rows = rows, .type = type, .op = op };
    _Alignas(64) union block partial[COMM_REDUCE_LEVELS];

    for (r.lo = 0; r.lo < n; r.lo += step) {
        const void *result;

        r.n = n - r.lo < step ? n - r.lo : step;
        result = reduce_tree(partial, &r, 0, n_rows);
        for (int d = 0; d < n_dsts; d++) {
            char *dst = (char *)dsts[d] + r.lo * width;

            if (dst != result) /* one row alone */
                memcpy(dst, result, (size_t)(r.n * width));
        }
    }
}
