/*
 * kernels/cuda/copy.cu - gather and split of boxes in device memory: one persistent kernel over a
 * table of descriptors. The index arithmetic and the loads and stores are those of
 * kernels/copy_body.h.
 */
#include "kernels/cpu/copy_table_body.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/run.h"

/* 768 threads of at most 80 registers on a processor: with four words of 16 bytes each, 48 KiB in
 * flight, twice what 4.8 TB/s over 132 processors needs at a latency of 700 ns. */
enum { COPY_BLOCKS = 3 };

__global__ void __launch_bounds__(LAUNCH_THREADS, COPY_BLOCKS)
    copy_one_kernel(const __grid_constant__ struct copy_item item)
{
    copy_item_work(&item, launch_thread(), launch_threads());
}

/* Every block reads the whole table. A worker without a row of an item continues with the next
 * item. */
__global__ void __launch_bounds__(LAUNCH_THREADS, COPY_BLOCKS)
    copy_table_kernel(const __grid_constant__ struct copy_table a)
{
    for (int i = 0; i < a.n_items; i++)
        copy_table_work(&a.items[i], launch_thread(), launch_threads());
}

void cuda_run_copy_box(struct device_queue *q, const struct copy_box *a)
{
    struct copy_item item;
    int64_t threads;

    copy_item_make(&item, a, DTYPE_U8, DTYPE_U8);
    if (item.rows.n_rows == 0)
        return;
    threads = copy_item_warps(&item) * COPY_WARP;
    launch(q, "a copy", dim3(launch_blocks(q, threads / LAUNCH_THREADS + 1, COPY_BLOCKS)),
           copy_one_kernel, item);
}

void cuda_run_copy_table(struct device_queue *q, const struct copy_table *a)
{
    const int64_t blocks = (a->warps + LAUNCH_WARPS - 1) / LAUNCH_WARPS;

    if (blocks > 0)
        launch(q, "a table of copies", dim3(launch_blocks(q, blocks, COPY_BLOCKS)),
               copy_table_kernel, *a);
}
