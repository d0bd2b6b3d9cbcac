/* kernels/cpu/bias.c - see kernels/bias.h. */
#include "kernels/bias.h"

#include "kernels/cpu/column_sums.h"
#include "kernels/cpu/thread.h"
#include "kernels/cpu/vec.h"

struct bias {
    float *x, *workspace;
    const float *residual, *bias;
    const char *dy;
    enum dtype type;
    int64_t cols;
};

static KERNEL_CLONES void add_f32(float *restrict x, const float *restrict y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] += y[i];
}

static KERNEL_CLONES void add_bf16(float *restrict x, const uint16_t *restrict y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] += vec_from_bf16(y[i]);
}

static void add_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct bias *b = ctx;

    (void)thread;
    for (int64_t r = lo; r < hi; r++) {
        if (b->residual)
            add_f32(b->x + r * b->cols, b->residual + r * b->cols, b->cols);
        if (b->bias)
            add_f32(b->x + r * b->cols, b->bias, b->cols);
    }
}

void bias_add(float *x, const float *bias, int64_t rows, int64_t cols)
{
    struct bias b = { .x = x, .bias = bias, .cols = cols };

    kernels_for(rows, kernels_grain(cols * 8), add_range, &b);
}

void residual_add(float *x, const float *residual, const float *bias, int64_t rows, int64_t cols)
{
    struct bias b = { .x = x, .residual = residual, .bias = bias, .cols = cols };

    kernels_for(rows, kernels_grain(cols * 12), add_range, &b);
}

static void gradient_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct bias *b = ctx;
    float *part = column_sums_part(b->workspace, b->cols, thread);

    for (int64_t r = lo; r < hi; r++) {
        if (b->type == DTYPE_F32)
            add_f32(part, (const float *)b->dy + r * b->cols, b->cols);
        else
            add_bf16(part, (const uint16_t *)b->dy + r * b->cols, b->cols);
        column_sums_next(b->workspace, b->cols, thread, r, lo, hi);
    }
}

void bias_gradient(float *dbias, const void *dy, enum dtype type, int64_t rows, int64_t cols,
                   float *workspace)
{
    struct bias b = { .dy = dy, .type = type, .cols = cols, .workspace = workspace };

    column_sums_begin(workspace, cols);
    kernels_for(rows, kernels_grain(cols * 8), gradient_range, &b);
    column_sums_add(dbias, workspace, cols, 0, cols);
}

int64_t bias_workspace(int64_t cols)
{
    return column_sums_workspace(cols);
}
