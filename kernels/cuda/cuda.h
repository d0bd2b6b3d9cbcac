/*
 * kernels/cuda/cuda.h - the operations of kernels/ops.h on an NVIDIA GPU: queues of the CUDA device
 * (device/cuda/cuda.h). Copies, casts and the sums of kernels/sum.h have the bits of the CPU's
 * operations; the others differ by rounding. Products are cuBLAS's.
 */
#ifndef KERNELS_CUDA_CUDA_H
#define KERNELS_CUDA_CUDA_H

#include "kernels/ops.h"

extern const struct kernel_ops kernels_cuda;

#endif
