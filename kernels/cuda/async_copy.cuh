/*
 * kernels/cuda/async_copy.cuh - copies from global to shared memory that run while the thread that
 * began them computes (PTX: cp.async). The bytes pass no register.
 *
 * A thread puts the copies that it has begun into a group with async_copy_commit, and waits for its
 * groups with async_copy_wait. Other threads may use the bytes after a barrier that follows the
 * wait. From the beginning of a copy until then nobody may use the place where it goes.
 */
#ifndef KERNELS_CUDA_ASYNC_COPY_CUH
#define KERNELS_CUDA_ASYNC_COPY_CUH

#include <cuda_runtime.h>
#include <stdint.h>

/* Begin to copy 16 bytes; if !is_there, zeros, and `from` is not read. Both addresses are multiples
 * of 16. The bytes are not kept in the first cache. */
static __device__ __forceinline__ void async_copy_16(void *to, const void *from, bool is_there)
{
#ifdef __CUDACC__
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(to)),
                 "l"(__cvta_generic_to_global(from)), "r"(is_there ? 16 : 0)
                 : "memory");
#else
    fakecuda_cp_async(to, from, 16, is_there ? 16 : 0);
#endif
}

/* The same of 4 bytes. */
static __device__ __forceinline__ void async_copy_4(void *to, const void *from, bool is_there)
{
#ifdef __CUDACC__
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(to)),
                 "l"(__cvta_generic_to_global(from)), "r"(is_there ? 4 : 0)
                 : "memory");
#else
    fakecuda_cp_async(to, from, 4, is_there ? 4 : 0);
#endif
}

static __device__ __forceinline__ void async_copy_commit(void)
{
#ifdef __CUDACC__
    asm volatile("cp.async.commit_group;" ::: "memory");
#else
    fakecuda_cp_async_commit();
#endif
}

/* Wait until all groups but the last N are complete. */
template <int N> static __device__ __forceinline__ void async_copy_wait(void)
{
#ifdef __CUDACC__
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#else
    fakecuda_cp_async_wait(N);
#endif
}

#endif
