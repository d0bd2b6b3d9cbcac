/* kernels/cpu/soft_cap.c - see kernels/soft_cap.h. */
#include "kernels/soft_cap.h"

#include "kernels/cpu/run.h"
#include "kernels/cpu/thread.h"
#include "kernels/cpu/vec.h"

static KERNEL_CLONES void cap_all(float *x, float cap, int64_t n)
{
    const float by = 1.0f / cap;

    for (int64_t i = 0; i < n; i++)
        x[i] = cap * vec_tanh(x[i] * by);
}

static void cap_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct soft_cap *a = ctx;

    (void)thread;
    cap_all((float *)a->x + lo, a->cap, hi - lo);
}

tp_status cpu_run_soft_cap(struct device_queue *q, const struct soft_cap *a, struct tp_err *err)
{
    struct soft_cap range = *a;
    tp_status st = cpu_run_wants_f32(a->type, "a cap of logits", err);

    if (!st)
        kernels_for(q, a->n, kernels_grain(16), cap_range, &range);
    return st;
}
