/* kernels/cpu/grouped_gemm.c - see kernels/grouped_gemm.h. */
#include "kernels/cpu/grouped_gemm_body.h"

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/run.h"

tp_status cpu_run_grouped_gemm(struct device_queue *q, const struct grouped_gemm *a,
                               struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int i = 0; i < a->groups && !st; i++) {
        const struct gemm one = grouped_gemm_product(a, a->offsets, i);

        st = gemm_one(q, &one, err);
    }
    return st;
}
