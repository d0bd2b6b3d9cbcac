/* kernels/cpu/embedding.c - see kernels/embedding.h. */
#include "kernels/embedding.h"

#include <string.h>

#include "kernels/cast.h"
#include "kernels/cpu/thread.h"
#include "kernels/cpu/vec.h"

struct embedding {
    float *x;
    const char *table;
    enum dtype type;
    const float *dx;
    const int32_t *ids;
    int64_t n, first, rows, cols;
};

static void forward_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct embedding *e = ctx;

    (void)thread;
    for (int64_t i = lo; i < hi; i++) {
        int64_t row = e->ids[i] - e->first;
        float *x = e->x + i * e->cols;
        if (row < 0 || row >= e->rows)
            memset(x, 0, (size_t)e->cols * sizeof *x);
        else
            cast(x, DTYPE_F32, e->table + row * e->cols * dtype_bytes(e->type), e->type, e->cols);
    }
}

void embedding_forward(float *x, const void *table, enum dtype type, const int32_t *ids, int64_t n,
                       int64_t first, int64_t rows, int64_t cols)
{
    struct embedding e = { .x = x,
                           .table = table,
                           .type = type,
                           .ids = ids,
                           .n = n,
                           .first = first,
                           .rows = rows,
                           .cols = cols };

    kernels_for(n, kernels_grain(cols * 8), forward_range, &e);
}

static KERNEL_CLONES void add(float *restrict y, const float *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] += x[i];
}

/* A range of columns: every thread goes through all ids, so that a row's sum keeps their order. */
static void backward_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct embedding *e = ctx;

    (void)thread;
    for (int64_t i = 0; i < e->n; i++) {
        int64_t row = e->ids[i] - e->first;
        if (row >= 0 && row < e->rows)
            add(e->x + row * e->cols + lo, e->dx + i * e->cols + lo, hi - lo);
    }
}

void embedding_backward(float *dtable, const float *dx, const int32_t *ids, int64_t n,
                        int64_t first, int64_t rows, int64_t cols)
{
    struct embedding e = {
        .x = dtable, .dx = dx, .ids = ids, .n = n, .first = first, .rows = rows, .cols = cols
    };
    int64_t grain = kernels_grain(n * 12);

    kernels_for(cols, grain < 64 ? 64 : grain, backward_range, &e);
}
