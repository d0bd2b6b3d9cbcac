/* kernels/cpu/embedding.c - see kernels/embedding.h. */
#include "kernels/embedding.h"

#include <string.h>

#include "kernels/cast.h"
#include "kernels/cpu/run.h"
#include "kernels/cpu/thread.h"
#include "kernels/cpu/vec.h"

static void forward_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct embedding_forward *a = ctx;
    const char *table = a->table;

    (void)thread;
    for (int64_t i = lo; i < hi; i++) {
        int64_t row = a->ids[i] - a->first;
        float *x = a->x + i * a->cols;

        if (row < 0 || row >= a->rows)
            memset(x, 0, (size_t)a->cols * sizeof *x);
        else
            cast(x, DTYPE_F32, table + row * a->cols * dtype_bytes(a->type), a->type, a->cols);
    }
}

tp_status cpu_run_embedding_forward(struct device_queue *q, const struct embedding_forward *a,
                                    struct tp_err *err)
{
    struct embedding_forward rows = *a;

    (void)err;
    kernels_for(q, a->n, kernels_grain(a->cols * 8), forward_range, &rows);
    return TP_OK;
}

static KERNEL_CLONES void add(float *restrict y, const float *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] += x[i];
}

/* A range of columns: every thread goes through all ids, so that a row's sum keeps their order. */
static void backward_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct embedding_backward *a = ctx;

    (void)thread;
    for (int64_t i = 0; i < a->n; i++) {
        int64_t row = a->ids[i] - a->first;

        if (row >= 0 && row < a->rows)
            add(a->dtable + row * a->cols + lo, a->dx + i * a->cols + lo, hi - lo);
    }
}

tp_status cpu_run_embedding_backward(struct device_queue *q, const struct embedding_backward *a,
                                     struct tp_err *err)
{
    struct embedding_backward columns = *a;
    int64_t grain = kernels_grain(a->n * 12);

    (void)err;
    kernels_for(q, a->cols, grain < 64 ? 64 : grain, backward_range, &columns);
    return TP_OK;
}
