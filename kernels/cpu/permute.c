/* kernels/cpu/permute.c - see kernels/permute.h. */
#include "kernels/permute.h"

#include <string.h>

#include "kernels/cpu/run.h"
#include "kernels/cpu/thread.h"
#include "kernels/cpu/vec.h"

/* offsets[e + 1] counts expert e, then is the end of its rows. While copies get their places,
 * offsets[e] is the next free row of expert e, so afterwards every entry is one expert ahead. */
tp_status cpu_run_permute_sort(struct device_queue *q, const struct permute_sort *a,
                               struct tp_err *err)
{
    int32_t *offsets = a->offsets;

    (void)q;
    (void)err;
    memset(offsets, 0, ((size_t)a->experts + 1) * sizeof *offsets);
    for (int64_t i = 0; i < a->n; i++)
        offsets[a->chosen[i] + 1]++;
    for (int e = 0; e < a->experts; e++)
        offsets[e + 1] += offsets[e];
    for (int64_t i = 0; i < a->n; i++) {
        int32_t row = offsets[a->chosen[i]]++;

        a->place[i] = row;
        a->source[row] = (int32_t)i;
    }
    memmove(offsets + 1, offsets, (size_t)a->experts * sizeof *offsets);
    offsets[0] = 0;
    return TP_OK;
}

tp_status cpu_run_permute_dispatch(struct device_queue *q, const struct permute_dispatch *a,
                                   struct tp_err *err)
{
    int own = a->experts / a->size;

    (void)q;
    (void)err;
    a->recv[0] = a->groups[0] = 0;
    for (int r = 0; r <= a->size; r++)
        a->send[r] = a->all_offsets[a->rank * (a->experts + 1) + r * own];
    for (int r = 0; r < a->size; r++) {
        const int32_t *from = a->all_offsets + r * (a->experts + 1) + a->rank * own;
        int32_t *groups = a->groups + r * own;

        for (int e = 0; e < own; e++)
            groups[e + 1] = groups[e] + from[e + 1] - from[e];
        a->recv[r + 1] = groups[own];
    }
    return TP_OK;
}

/* ---- copies ---- */

static void rows_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct permute_rows *a = ctx;
    int64_t bytes = a->cols * dtype_bytes(a->type);

    (void)thread;
    for (int64_t j = lo; j < hi; j++)
        memcpy((char *)a->y + j * bytes, (const char *)a->x + a->source[j] / a->per_row * bytes,
               (size_t)bytes);
}

tp_status cpu_run_permute_rows(struct device_queue *q, const struct permute_rows *a,
                               struct tp_err *err)
{
    struct permute_rows rows = *a;

    (void)err;
    kernels_for(q, a->n, kernels_grain(2 * a->cols * dtype_bytes(a->type)), rows_range, &rows);
    return TP_OK;
}

/* ---- sums ---- */

static KERNEL_CLONES void multiply(float *restrict y, const float *restrict x, float by, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = by * x[i];
}

static KERNEL_CLONES void multiply_add(float *restrict y, const float *restrict x, float by,
                                       int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] += by * x[i];
}

static void sum_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct permute_sum *a = ctx;

    (void)thread;
    for (int64_t i = lo * a->per_row; i < hi * a->per_row; i++) {
        float by = a->weights ? a->weights[i] : 1, *y = (float *)a->y + i / a->per_row * a->cols;
        const float *x = (const float *)a->x + a->place[i] * a->cols;

        (i % a->per_row == 0 && !a->add ? multiply : multiply_add)(y, x, by, a->cols);
    }
}

tp_status cpu_run_permute_sum(struct device_queue *q, const struct permute_sum *a,
                              struct tp_err *err)
{
    struct permute_sum rows = *a;
    tp_status st = cpu_run_wants_f32(a->x_type, "a sum of copies", err);

    st = st ? st : cpu_run_wants_f32(a->y_type, "a sum of copies", err);
    if (!st)
        kernels_for(q, a->rows, kernels_grain(4 * a->cols * (a->per_row + 1)), sum_range, &rows);
    return st;
}

/* ---- gradients of the weights ---- */

/* Returns the product of both rows, in lanes of each 256 and double over those. */
static KERNEL_CLONES double weigh_f32(float *restrict d, float *restrict x, float by, int64_t n)
{
    double total = 0;

    for (int64_t lo = 0; lo < n; lo += 256) {
        int64_t hi = n - lo < 256 ? n : lo + 256;
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = lo; i < hi; i++) {
            sum += d[i] * x[i];
            d[i] *= by;
            x[i] *= by;
        }
        total += (double)sum;
    }
    return total;
}

static KERNEL_CLONES double weigh_bf16(float *restrict d, uint16_t *restrict x, float by, int64_t n)
{
    double total = 0;

    for (int64_t lo = 0; lo < n; lo += 256) {
        int64_t hi = n - lo < 256 ? n : lo + 256;
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = lo; i < hi; i++) {
            float wide = vec_from_bf16(x[i]);

            sum += d[i] * wide;
            d[i] *= by;
            x[i] = vec_to_bf16(by * wide);
        }
        total += (double)sum;
    }
    return total;
}

static void weight_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct permute_weight_backward *a = ctx;

    (void)thread;
    for (int64_t j = lo; j < hi; j++) {
        int64_t copy = a->source ? a->source[j] : j;
        float by = a->weights[copy], *d = (float *)a->dhidden + j * a->cols;
        double product;

        if (a->type == DTYPE_F32)
            product = weigh_f32(d, (float *)a->hidden + j * a->cols, by, a->cols);
        else
            product = weigh_bf16(d, (uint16_t *)a->hidden + j * a->cols, by, a->cols);
        a->dweights[copy] = (float)product;
    }
}

tp_status cpu_run_permute_weight_backward(struct device_queue *q,
                                          const struct permute_weight_backward *a,
                                          struct tp_err *err)
{
    struct permute_weight_backward rows = *a;
    tp_status st = cpu_run_wants_f32(a->dhidden_type, "the gradient of weights", err);

    if (!st)
        kernels_for(q, a->count ? *a->count : a->n, kernels_grain(a->cols * 12), weight_range,
                    &rows);
    return st;
}
