/*
 * kernels/cuda/mma.cuh - products of a warp on tensor cores, in PTX's own terms: D = A B + D, with
 * A[16][16] and B[16][8] in bf16 and D[16][8] in f32. All 32 lanes of a warp call each function.
 *
 * Each lane has a part of each matrix, its fragment. Lane l, with g = l / 4 and t = l % 4, has
 *
 *   A  a[0], a[1]: columns 2t and 2t + 1 of row g and of row g + 8
 *      a[2], a[3]: the same of columns 2t + 8 and 2t + 9
 *   B  b[0], b[1]: rows 2t and 2t + 1, and rows 2t + 8 and 2t + 9, of column g
 *   D  d[0], d[1]: columns 2t and 2t + 1 of row g; d[2], d[3]: of row g + 8
 *
 * Of the two bf16 in a word, the first is in the lower half. So the D of one product, rounded, is
 * half of the A of another one. See NVIDIA's PTX ISA, "Matrix Fragments for mma.m16n8k16".
 */
#ifndef KERNELS_CUDA_MMA_CUH
#define KERNELS_CUDA_MMA_CUH

#include <cuda_runtime.h>
#include <stdint.h>

/* d += A B. Volatile, because all lanes run it together: it must not be moved into a branch. */
static __device__ __forceinline__ void mma_add(float *d, const uint32_t *a, const uint32_t *b)
{
#ifdef __CUDACC__
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    fakecuda_mma_m16n8k16(d, a, b);
#endif
}

/* Load four matrices of 8 x 8 bf16 from shared memory. Lanes 8 i .. 8 i + 7 give the addresses of
 * the eight rows of matrix i, each a multiple of 16. to[i] receives columns 2t and 2t + 1 of row g
 * of matrix i. */
static __device__ __forceinline__ void mma_load(uint32_t *to, const uint16_t *row)
{
#ifdef __CUDACC__
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
#else
    fakecuda_ldmatrix_x4(to, row, false);
#endif
}

/* The same of the transposed matrices: rows 2t and 2t + 1 of column g. */
static __device__ __forceinline__ void mma_load_transposed(uint32_t *to, const uint16_t *row)
{
#ifdef __CUDACC__
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
#else
    fakecuda_ldmatrix_x4(to, row, true);
#endif
}

#endif
