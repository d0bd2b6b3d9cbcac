/* kernels/cpu/scale.c - see kernels/scale.h. */
#include "kernels/scale.h"

#include "kernels/cpu/run.h"
#include "kernels/cpu/thread.h"
#include "kernels/cpu/vec.h"

static KERNEL_CLONES void scale_and_add(float *x, float factor, float plus, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = x[i] * factor + plus;
}

static void scale_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct scale *a = ctx;

    (void)thread;
    scale_and_add(a->x + lo, a->factor, a->plus, hi - lo);
}

tp_status cpu_run_scale(struct device_queue *q, const struct scale *a, struct tp_err *err)
{
    struct scale range = *a;

    (void)err;
    kernels_for(q, a->n, kernels_grain(1), scale_range, &range);
    return TP_OK;
}
