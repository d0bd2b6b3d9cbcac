/* kernels/cpu/tree_reduce.c - see kernels/cpu/tree_reduce.h. */
#include "kernels/cpu/tree_reduce.h"

#include <string.h>

#include "kernels/cpu/vec.h"

enum { BLOCK_BYTES = 4096 }; /* of a partial sum: some of them stay in the first-level cache */

union tree_reduce_block {
    float f32[BLOCK_BYTES / sizeof(float)];
    double f64[BLOCK_BYTES / sizeof(double)];
    uint64_t u64[BLOCK_BYTES / sizeof(uint64_t)];
    int64_t i64[BLOCK_BYTES / sizeof(int64_t)];
};

/* out = a op b; out may be a. */

static KERNEL_CLONES void sum_f32(float *out, const float *a, const float *b, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        out[i] = a[i] + b[i];
}

/* Two levels of the tree at once, for what is summed most: partial sums stay in registers. */
static KERNEL_CLONES void sum4_f32(float *out, const float *a, const float *b, const float *c,
                                   const float *d, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        out[i] = (a[i] + b[i]) + (c[i] + d[i]);
}

static KERNEL_CLONES void sum_f64(double *out, const double *a, const double *b, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        out[i] = a[i] + b[i];
}

static KERNEL_CLONES void sum_u64(uint64_t *out, const uint64_t *a, const uint64_t *b, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        out[i] = a[i] + b[i];
}

static KERNEL_CLONES void max_f32(float *out, const float *a, const float *b, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        out[i] = a[i] > b[i] || a[i] != a[i] ? a[i] : b[i];
}

static KERNEL_CLONES void max_f64(double *out, const double *a, const double *b, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        out[i] = a[i] > b[i] || a[i] != a[i] ? a[i] : b[i];
}

static KERNEL_CLONES void max_i64(int64_t *out, const int64_t *a, const int64_t *b, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        out[i] = a[i] > b[i] ? a[i] : b[i];
}

static KERNEL_CLONES void widen_bf16(float *restrict out, const uint16_t *restrict in, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = vec_from_bf16(in[i]);
}

static KERNEL_CLONES void round_bf16(uint16_t *restrict out, const float *restrict in, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = vec_to_bf16(in[i]);
}

/* What is reduced at a time: elements lo .. lo + n - 1 of every row. */
struct tree_reduce_run {
    const struct tree_reduce *t;
    int64_t lo, n;
};

static void combine(union tree_reduce_block *out, const void *a, const void *b,
                    const struct tree_reduce_run *r)
{
    bool sum = r->t->op == TREE_REDUCE_SUM;

    switch (r->t->type) {
    case DTYPE_F64:
        (sum ? sum_f64 : max_f64)(out->f64, a, b, r->n);
        break;
    case DTYPE_I64:
        if (sum)
            sum_u64(out->u64, a, b, r->n);
        else
            max_i64(out->i64, a, b, r->n);
        break;
    default: /* f32, or bf16 that was widened */
        (sum ? sum_f32 : max_f32)(out->f32, a, b, r->n);
    }
}

/* One row's elements: where they are, or in bf16 widened, in *out. */
static const void *row_of(union tree_reduce_block *out, const struct tree_reduce_run *r, int row)
{
    const char *at = (const char *)r->t->rows[row] + r->lo * dtype_bytes(r->t->type);

    if (r->t->type != DTYPE_BF16)
        return at;
    widen_bf16(out->f32, (const uint16_t *)at, r->n);
    return out;
}

/* Rows first .. first + n_rows - 1 along the tree: where their result is, *out or a row. Blocks
 * behind `out` are for partial results, one for each level. */
static const void *reduce(union tree_reduce_block *out, const struct tree_reduce_run *r, int first,
                          int n_rows)
{
    int left = 1;
    const void *a, *b;

    if (n_rows == 1)
        return row_of(out, r, first);
    if (n_rows == 4 && r->t->type == DTYPE_F32 && r->t->op == TREE_REDUCE_SUM) {
        sum4_f32(out->f32, row_of(out, r, first), row_of(out, r, first + 1),
                 row_of(out, r, first + 2), row_of(out, r, first + 3), r->n);
        return out;
    }
    while (2 * left < n_rows)
        left *= 2;
    a = reduce(out, r, first, left);
    b = reduce(out + 1, r, first + left, n_rows - left);
    combine(out, a, b, r);
    return out;
}

void tree_reduce(const struct tree_reduce *t, int64_t n)
{
    int64_t width = dtype_bytes(t->type), step = BLOCK_BYTES / (width < 4 ? 4 : width);
    struct tree_reduce_run r = { .t = t };
    _Alignas(64) union tree_reduce_block partial[TREE_REDUCE_LEVELS + 1];

    for (r.lo = 0; r.lo < n; r.lo += step) {
        const void *result;

        r.n = n - r.lo < step ? n - r.lo : step;
        result = reduce(partial, &r, 0, t->n_rows);
        for (int d = 0; d < t->n_dsts; d++) {
            char *dst = (char *)t->dsts[d] + r.lo * width;

            if (t->type == DTYPE_BF16)
                round_bf16((uint16_t *)dst, result, r.n);
            else if (dst != result) /* one row alone */
                memcpy(dst, result, (size_t)(r.n * width));
        }
    }
}
