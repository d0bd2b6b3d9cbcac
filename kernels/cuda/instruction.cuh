/*
 * kernels/cuda/instruction.cuh - single instructions of a GPU, where C++ would need many: powers of
 * 2, and rounding to bf16.
 */
#ifndef KERNELS_CUDA_INSTRUCTION_CUH
#define KERNELS_CUDA_INSTRUCTION_CUH

#include <cuda_runtime.h>
#include <stdint.h>

/* By which exponents are multiplied: a GPU computes powers of 2. */
#define INSTRUCTION_LOG2_E 1.44269504f

/* 2^x with a relative error of some 2^-22, as numbers need that become bf16; 0 below 2^-126. */
static __device__ __forceinline__ float instruction_exp2(float x)
{
#ifdef __CUDACC__
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return exp2f(x);
#endif
}

/* Two numbers, rounded to the nearest bf16, in a word; the first is in the lower half. A NaN is
 * the GPU's own. */
static __device__ __forceinline__ uint32_t instruction_bf16x2(float first, float second)
{
#ifdef __CUDACC__
    uint32_t both;

    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    return both;
#else
    return fakecuda_cvt_bf16x2(second, first);
#endif
}

#endif
