/* kernels/cpu/grouped_gemm.c - see kernels/grouped_gemm.h. */
#include "kernels/grouped_gemm.h"

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/run.h"

static const void *rows_from(const struct gemm *g, const void *x, int64_t elements)
{
    return (const char *)x + elements * dtype_bytes(g->type);
}

/* The product of one group. */
static struct gemm product_of(const struct grouped_gemm *a, int group)
{
    struct gemm one = a->product;
    int64_t first = a->offsets[group], n = a->offsets[group + 1] - first;
    int matrix = a->matrices ? group % a->matrices : group;

    one.a = rows_from(&one, one.a, first * one.lda);
    if (a->axis == GEMM_M) {
        one.m = n;
        one.b = rows_from(&one, one.b, matrix * a->step);
        one.c += first * one.ldc;
    } else {
        one.k = n;
        one.b = rows_from(&one, one.b, first * one.ldb);
        one.c += matrix * a->step;
        one.beta = matrix == group ? one.beta : 1;
    }
    return one;
}

tp_status cpu_run_grouped_gemm(struct device_queue *q, const struct grouped_gemm *a,
                               struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int i = 0; i < a->groups && !st; i++) {
        const struct gemm one = product_of(a, i);

        st = gemm_one(q, &one, err);
    }
    return st;
}
