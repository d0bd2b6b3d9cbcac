/*
 * kernels/cuda/wgmma.cuh - products of a warpgroup, that is of four warps, on Hopper's tensor
 * cores, in PTX's own terms: D = A B + D, with A[64][16] and B[16][64] in bf16 and D[64][64] in
 * f32. All 128 threads of a warpgroup call each function; its first thread is a multiple of 128.
 *
 * A product runs beside the threads. wgmma_fence comes before products that use registers which
 * anything else has written; wgmma_commit makes a group of the products since the last one; until
 * wgmma_wait their registers are not touched, and what they read in shared memory is not written.
 *
 * Rows 16 w .. 16 w + 15 of A and D belong to warp w, and a lane has of them what it has of
 * mma.m16n8k16 (mma.cuh): d[4 j + i] is d[i] of columns 8 j .. 8 j + 7.
 *
 * Matrices in shared memory are panels of 64 columns, 128 bytes a row. The chunk of 16 bytes number
 * c of row r is at c ^ (r % 8), so that neither the eight chunks of a row nor those of a column
 * share a bank. A descriptor says where a panel begins, in PTX's "matrix descriptor" format: bits 0
 * to 13 are the address / 16, bits 32 to 45 the distance / 16 from eight rows to the next eight,
 * and bits 62 and 63 are 1 for this order of chunks. (The other distance, bits 16 to 29, is that
 * between panels, of which a product has one.) Panels begin at multiples of 1024 bytes.
 *
 * These instructions exist for sm_90a only. In code for other GPUs the functions are empty, and
 * wgmma_is_there says that they must not be called.
 */
#ifndef KERNELS_CUDA_WGMMA_CUH
#define KERNELS_CUDA_WGMMA_CUH

#include <cuda_runtime.h>
#include <stdint.h>

enum {
    WGMMA_THREADS = 128,  /* of a warpgroup */
    WGMMA_ROWS = 64,      /* of A and D */
    WGMMA_COLUMNS = 64,   /* of B, D and a panel */
    WGMMA_DEPTH = 16,     /* columns of A, rows of B */
    WGMMA_CAPABILITY = 90 /* of the GPUs that have these instructions */
};

/* Whether this code is for a GPU that has them. */
static __device__ constexpr bool wgmma_is_there(void)
{
#if defined(__CUDACC__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
    return false;
#else
    return true;
#endif
}

template <int ROWS> struct alignas(1024) wgmma_panel {
    uint16_t x[ROWS][WGMMA_COLUMNS];
};

/* Where chunk c of row r of a panel is, in elements from the row's begin. */
static __device__ __forceinline__ int wgmma_chunk(int r, int c)
{
    return (c ^ r % 8) * 8;
}

/* The descriptor of the panel whose row 0 is at x. */
static __device__ __forceinline__ uint64_t wgmma_descriptor(const void *x)
{
#ifdef __CUDACC__
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(x);
#else
    const uint32_t at = fakecuda_shared_address(x);
#endif
    return (uint64_t)1 << 62 | (uint64_t)(1024 / 16) << 32 | (uint64_t)1 << 16 |
           (at & 0x3ffffu) / 16;
}

/* The same of a panel, or of columns, that begin so many bytes later. */
static __device__ __forceinline__ uint64_t wgmma_later(uint64_t descriptor, int bytes)
{
    return descriptor + (uint64_t)(bytes / 16);
}

/* Registers that products write: neither their values nor their uses move across this. */
static __device__ __forceinline__ void wgmma_keep(float *d, int n)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#pragma unroll
    for (int i = 0; i < n; i++)
        asm volatile("" : "+f"(d[i])::"memory");
#else
    (void)d;
    (void)n;
#endif
}

/* Registers to which the next products do not add: what they are now is not needed. */
static __device__ __forceinline__ void wgmma_forget(float *d, int n)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#pragma unroll
    for (int i = 0; i < n; i++)
        asm volatile("" : "=f"(d[i]));
#else
    (void)d;
    (void)n;
#endif
}

/* The same of words that products read. */
static __device__ __forceinline__ void wgmma_keep_words(uint32_t *a, int n)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#pragma unroll
    for (int i = 0; i < n; i++)
        asm volatile("" : "+r"(a[i])::"memory");
#else
    (void)a;
    (void)n;
#endif
}

static __device__ __forceinline__ void wgmma_fence(void)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#elif !defined(__CUDACC__)
    fakecuda_wgmma_fence();
#endif
}

static __device__ __forceinline__ void wgmma_commit(void)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#elif !defined(__CUDACC__)
    fakecuda_wgmma_commit();
#endif
}

/* Wait until all groups but the last N are complete. */
template <int N> static __device__ __forceinline__ void wgmma_wait(void)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
#elif !defined(__CUDACC__)
    fakecuda_wgmma_wait(N);
#endif
}

/* Let products see what the calling thread has written to shared memory, also by copies that are
 * complete. A barrier follows, after which others may use it. */
static __device__ __forceinline__ void wgmma_fence_shared(void)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#elif !defined(__CUDACC__)
    fakecuda_fence_proxy_async();
#endif
}

/* A barrier of a block with two warpgroups, each of which may be at another place in the code; not
 * that of __syncthreads. */
static __device__ __forceinline__ void wgmma_turn(void)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("bar.sync 1, %0;" ::"n"(2 * WGMMA_THREADS) : "memory");
#elif !defined(__CUDACC__)
    fakecuda_barrier_anywhere();
#endif
}

#define WGMMA_REGISTERS                        \
    "{%0, %1, %2, %3, %4, %5, %6, %7, "        \
    "%8, %9, %10, %11, %12, %13, %14, %15, "   \
    "%16, %17, %18, %19, %20, %21, %22, %23, " \
    "%24, %25, %26, %27, %28, %29, %30, %31}"
#define WGMMA_FOUR(d, i) "+f"((d)[i]), "+f"((d)[(i) + 1]), "+f"((d)[(i) + 2]), "+f"((d)[(i) + 3])
#define WGMMA_ALL(d)                                                                            \
    WGMMA_FOUR(d, 0), WGMMA_FOUR(d, 4), WGMMA_FOUR(d, 8), WGMMA_FOUR(d, 12), WGMMA_FOUR(d, 16), \
        WGMMA_FOUR(d, 20), WGMMA_FOUR(d, 24), WGMMA_FOUR(d, 28)

/* d = A B^T, or with `adds` d += A B^T: 16 columns of 64 rows each of two panels. */
static __device__ __forceinline__ void wgmma_dots(float *d, uint64_t a, uint64_t b, bool adds)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " WGMMA_REGISTERS
                 ", %32, %33, p, 1, 1, 0, 0;\n}"
                 : WGMMA_ALL(d)
                 : "l"(a), "l"(b), "r"((int)adds));
#elif !defined(__CUDACC__)
    fakecuda_wgmma_m64n64k16(d, nullptr, a, b, adds, false);
#else
    (void)d, (void)a, (void)b, (void)adds;
#endif
}

/* d += A B: A in registers, as mma_add has it, and 16 rows of a panel. */
static __device__ __forceinline__ void wgmma_sum(float *d, const uint32_t *a, uint64_t b)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " WGMMA_REGISTERS
                 ", {%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}"
                 : WGMMA_ALL(d)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
#elif !defined(__CUDACC__)
    fakecuda_wgmma_m64n64k16(d, a, 0, b, true, true);
#else
    (void)d, (void)a, (void)b;
#endif
}

#endif
