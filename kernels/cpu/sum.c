/* kernels/cpu/sum.c - see kernels/sum.h. */
#include "kernels/sum.h"

#include <string.h>

#include "kernels/cpu/run.h"
#include "kernels/cpu/thread.h"
#include "kernels/cpu/tree_reduce.h"
#include "kernels/cpu/vec.h"

static KERNEL_CLONES void add(float *restrict y, const float *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] += x[i];
}

/* ---- y += x ---- */

enum { BLOCK = 2048 }; /* elements that stay in the first-level cache */

static void add_rows(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct sum_add *a = ctx;

    (void)thread;
    for (int64_t r = lo; r < hi; r++)
        add(a->y + r * a->ldy, a->x + r * a->ldx, a->cols);
}

/* Columns lo .. hi - 1 of all rows. */
static void add_cols(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct sum_add *a = ctx;

    (void)thread;
    for (int64_t i = lo; i < hi; i += BLOCK)
        for (int64_t r = 0; r < a->rows; r++)
            add(a->y + r * a->ldy + i, a->x + r * a->ldx + i, hi - i < BLOCK ? hi - i : BLOCK);
}

/* Threads share the rows, or, where all are added to one or they are few, the columns. */
tp_status cpu_run_sum_add(struct device_queue *q, const struct sum_add *a, struct tp_err *err)
{
    struct sum_add rows = *a;

    (void)err;
    if (a->ldy == 0 || a->rows < 8 * q->device->threads)
        kernels_for(q, a->cols, kernels_grain(12 * a->rows), add_cols, &rows);
    else
        kernels_for(q, a->rows, kernels_grain(a->cols * 12), add_rows, &rows);
    return TP_OK;
}

/* ---- along the tree ---- */

enum { TREE_ROWS_MAX = 1 << 10 };

static void tree_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct sum_tree *a = ctx;
    const void *rows[TREE_ROWS_MAX];
    void *out = a->out + lo;
    const struct tree_reduce t = { &out, 1, rows, a->count, DTYPE_F32, TREE_REDUCE_SUM };

    (void)thread;
    for (int s = 0; s < a->count; s++)
        rows[s] = a->parts + s * a->step + lo;
    tree_reduce(&t, hi - lo);
}

tp_status cpu_run_sum_tree(struct device_queue *q, const struct sum_tree *a, struct tp_err *err)
{
    struct sum_tree tree = *a;

    if (a->count < 1 || a->count > TREE_ROWS_MAX)
        return tp_fail(err, TP_E_INTERNAL, "a sum of %d rows along the tree: 1 to %d", a->count,
                       TREE_ROWS_MAX);
    kernels_for(q, a->n, kernels_grain(4 * ((int64_t)a->count + 1)), tree_range, &tree);
    return TP_OK;
}

/* ---- levels of a binary counter ---- */

static void levels_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct sum_levels *a = ctx;

    (void)thread;
    for (int64_t i = lo; i < hi; i += BLOCK) {
        int64_t n = hi - i < BLOCK ? hi - i : BLOCK;
        float sum[BLOCK];

        memcpy(sum, a->x + i, (size_t)n * sizeof *sum);
        for (int k = 0; k < a->n_levels; k++)
            add(sum, a->level[k] + i, n);
        memcpy(a->to + i, sum, (size_t)n * sizeof *sum);
    }
}

tp_status cpu_run_sum_levels(struct device_queue *q, const struct sum_levels *a, struct tp_err *err)
{
    struct sum_levels levels = *a;

    (void)err;
    kernels_for(q, a->n, BLOCK * kernels_grain(BLOCK * 4 * ((int64_t)a->n_levels + 2)),
                levels_range, &levels);
    return TP_OK;
}

/* ---- doubles ---- */

tp_status cpu_run_sum_doubles(struct device_queue *q, const struct sum_doubles *a,
                              struct tp_err *err)
{
    (void)q;
    (void)err;
    for (int64_t i = 0; i < a->n; i++) {
        double sum = 0;

        for (int64_t k = 0; k < a->size; k++)
            sum += a->in[i * a->size + k];
        a->out[i] = sum;
    }
    return TP_OK;
}

static double sum_half(const double *x, int64_t n)
{
    return n == 1 ? x[0] : sum_half(x, n / 2) + sum_half(x + n / 2, n / 2);
}

tp_status cpu_run_sum_halves(struct device_queue *q, const struct sum_halves *a, struct tp_err *err)
{
    (void)q;
    if (a->n < 1 || (a->n & (a->n - 1)))
        return tp_fail(err, TP_E_INTERNAL, "a sum by halves of %lld numbers", (long long)a->n);
    *a->out = sum_half(a->in, a->n);
    return TP_OK;
}
