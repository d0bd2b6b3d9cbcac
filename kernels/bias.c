/* kernels/bias.c - see kernels/bias.h. */
#include "kernels/bias.h"

#include <string.h>

#include "kernels/thread.h"
#include "kernels/vec.h"

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

/* Rows are summed 32 at a time, and those sums in turn, as in kernels/norm.c. */
static void gradient_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct bias *b = ctx;
    float *total = b->workspace + 2 * thread * b->cols, *part = total + b->cols;

    for (int64_t r = lo; r < hi; r++) {
        if (b->type == DTYPE_F32)
            add_f32(part, (const float *)b->dy + r * b->cols, b->cols);
        else
            add_bf16(part, (const uint16_t *)b->dy + r * b->cols, b->cols);
        if ((r - lo) % 32 == 31 || r + 1 == hi) {
            add_f32(total, part, b->cols);
            memset(part, 0, (size_t)b->cols * sizeof *part);
        }
    }
}

void bias_gradient(float *dbias, const void *dy, enum dtype type, int64_t rows, int64_t cols,
                   float *workspace)
{
    struct bias b = { .dy = dy, .type = type, .cols = cols, .workspace = workspace };
    int threads = kernels_team();

    memset(workspace, 0, (size_t)(2 * cols * threads) * sizeof *workspace);
    kernels_for(rows, kernels_grain(cols * 8), gradient_range, &b);
    for (int t = 0; t < threads; t++)
        add_f32(dbias, workspace + 2 * t * cols, cols);
}

int64_t bias_workspace(int64_t cols)
{
    return 2 * cols * kernels_threads();
}
