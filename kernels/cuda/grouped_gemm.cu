/*
 * kernels/cuda/grouped_gemm.cu - see kernels/grouped_gemm.h. One product of cuBLAS for each group
 * that has rows: cuBLAS needs the shapes on the host, and its grouped products
 * (cublasGemmGroupedBatchedEx) have no f32 results of bf16 matrices.
 */
#include "kernels/cuda/run.h"

extern "C" {
#include "kernels/cpu/grouped_gemm_body.h"
}

void cuda_run_grouped_gemm(struct device_queue *q, const struct grouped_gemm *a)
{
    struct tp_err err;

    if (!a->host_offsets) {
        tp_fail(&err, TP_E_INTERNAL, "grouped products on a GPU need the groups' rows on the host");
        device_fail(q->device, &err);
        return;
    }
    for (int i = 0; i < a->groups; i++) {
        const struct gemm one = grouped_gemm_product(a, a->host_offsets, i);

        cuda_run_gemm(q, &one);
    }
}
