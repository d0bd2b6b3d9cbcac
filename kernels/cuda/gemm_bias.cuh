/*
 * kernels/cuda/gemm_bias.cuh - a product, the sum with its bias and GELU, or the gradient of GELU,
 * as one kernel, by cuBLASLt's epilogues. Without them, C is read and written once more.
 */
#ifndef KERNELS_CUDA_GEMM_BIAS_CUH
#define KERNELS_CUDA_GEMM_BIAS_CUH

#include <cublas_v2.h>

#include "kernels/cuda/run.h"

/* Queue C = alpha op(A) op(B) + beta C + bias, then its epilogue; g has a bias, an epilogue or
 * both, and its sizes are not 0. With a batch, which has a bias and no epilogue, that is all of its
 * products, together. Returns CUBLAS_STATUS_NOT_SUPPORTED and queues nothing where
 * cuBLASLt has no such kernel: the caller then multiplies and adds. A failure of the device's
 * memory is kept by the device, and the answer is CUBLAS_STATUS_SUCCESS. */
cublasStatus_t gemm_with_epilogue(struct device_queue *q, cublasHandle_t handle,
                                  const struct gemm *g);

#endif
