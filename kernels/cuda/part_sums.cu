/* kernels/cuda/part_sums.cu - see kernels/part_sums.h. Sums of integers in any order are equal, so
 * atomics give the same result in every run. */
#include "kernels/cpu/part_sums_body.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/run.h"

/* On a processor: the CRC's blocks have tables, the digest's have 64-bit products in registers. */
enum { CRC_BLOCKS = 4, DIGEST_BLOCKS = 2 };

struct reduce_xor {
    __device__ uint32_t operator()(uint32_t a, uint32_t b) const
    {
        return a ^ b;
    }
};

/* A block takes every gridDim-th piece of the table's CRCs. */
__global__ void __launch_bounds__(LAUNCH_THREADS, CRC_BLOCKS)
    part_sums_crc_kernel(const __grid_constant__ struct part_sums a)
{
    __shared__ uint32_t table[4][256];

    static_assert(LAUNCH_THREADS == 256, "a thread for each entry; 2^10 bytes of words");
    part_sums_table_entry(table, (int)threadIdx.x, a.crc_powers[10]);
    __syncthreads();
    for (int i = 0; i < a.n_items; i++) {
        const struct part_sums_item *it = &a.items[i];
        int64_t first = (blockIdx.x + gridDim.x - it->first_piece % gridDim.x) % gridDim.x;

        for (int64_t at = first * PART_SUMS_PIECE; at < it->crc_bytes;
             at += (int64_t)gridDim.x * PART_SUMS_PIECE) {
            int64_t left = it->crc_bytes - at;
            int64_t n = left < PART_SUMS_PIECE ? left : PART_SUMS_PIECE;
            uint32_t crc =
                part_sums_crc(&a, it->data + at, n, (int)threadIdx.x, LAUNCH_THREADS, table);

            crc = reduce_block(crc, reduce_xor());
            if (threadIdx.x == 0)
                atomicXor(&a.results[i].crc,
                          part_sums_shift(a.crc_powers, crc, it->after + left - n));
        }
    }
}

/* A warp takes every n-th row of each item. */
__global__ void __launch_bounds__(LAUNCH_THREADS, DIGEST_BLOCKS)
    part_sums_digest_kernel(const __grid_constant__ struct part_sums a)
{
    const int64_t warps = launch_threads() / 32, warp = launch_thread() / 32;
    const int lane = (int)(threadIdx.x % 32);

    for (int i = 0; i < a.n_items; i++) {
        const struct part_sums_item *it = &a.items[i];
        int64_t worker = (warp + warps - it->first_warp % warps) % warps;
        uint64_t sum[PART_SUMS_POINTS] = { 0, 0 };

        if (worker >= it->rows.n_rows)
            continue;
        part_sums_rows(sum, &a, it, worker, warps, lane, 32);
        for (int p = 0; p < PART_SUMS_POINTS; p++) {
            for (int d = 16; d > 0; d /= 2)
                sum[p] = part_sums_add(sum[p], __shfl_xor_sync(0xffffffffu, sum[p], d));
            if (lane == 0) {
                atomicAdd(&a.results[i].low[p], (unsigned long long)(uint32_t)sum[p]);
                atomicAdd(&a.results[i].high[p], (unsigned long long)(sum[p] >> 32));
            }
        }
    }
}

void cuda_run_part_sums(struct device_queue *q, const struct part_sums *a)
{
    const int64_t blocks = launch_warp_blocks(a->work.rows);

    if (a->n_items == 0)
        return;
    device_fill(q, a->results, 0, a->n_items * (int64_t)sizeof *a->results);
    if (a->work.pieces > 0)
        launch(q, "the CRCs of a table of parts",
               dim3(launch_blocks(q, a->work.pieces, CRC_BLOCKS)), part_sums_crc_kernel, *a);
    if (blocks > 0)
        launch(q, "the digests of a table of parts", dim3(launch_blocks(q, blocks, DIGEST_BLOCKS)),
               part_sums_digest_kernel, *a);
}
