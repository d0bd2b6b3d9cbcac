/*
 * kernels/cuda/copy.cu - gather and split of boxes in device memory: one persistent kernel over a
 * table of descriptors. The index arithmetic and the loads and stores are those of
 * kernels/copy_body.h.
 */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/launch.cuh"

/* 768 threads of at most 80 registers on a processor: with four words of 16 bytes each, 48 KiB in
 * flight, twice what 4.8 TB/s over 132 processors needs at a latency of 700 ns. */
enum { COPY_BLOCKS = 3 };

__global__ void __launch_bounds__(LAUNCH_THREADS, COPY_BLOCKS)
    copy_one_kernel(const __grid_constant__ struct copy_item item)
{
    copy_item_work(&item, launch_thread(), launch_threads());
}

/* Every block reads the whole table. A worker without a row of an item continues with the next
 * item.
 */
__global__ void __launch_bounds__(LAUNCH_THREADS, COPY_BLOCKS)
    copy_table_kernel(const struct copy_item *items, int n_items)
{
    for (int i = 0; i < n_items; i++)
        copy_item_work(&items[i], launch_thread(), launch_threads());
}

tp_status copy_box_cuda(void *dst, const struct box *dst_box, const void *src,
                        const struct box *src_box, const struct box *region, int elem_bytes,
                        cudaStream_t stream, struct tp_err *err)
{
    struct copy_item item;
    int64_t threads;

    copy_item_make(&item, dst, dst_box, src, src_box, region, elem_bytes);
    if (item.rows.n_rows == 0)
        return TP_OK;
    threads = copy_item_warps(&item) * COPY_WARP;
    copy_one_kernel<<<launch_blocks(threads, COPY_BLOCKS), LAUNCH_THREADS, 0, stream>>>(item);
    return launch_status("a copy", err);
}

void copy_table_place(struct copy_item *items, int n_items)
{
    int64_t warp = 0;

    for (int i = 0; i < n_items; i++) {
        items[i].first_warp = warp;
        warp += copy_item_warps(&items[i]);
    }
}

tp_status copy_table_cuda(const struct copy_item *items, int n_items, cudaStream_t stream,
                          struct tp_err *err)
{
    if (n_items == 0)
        return TP_OK;
    copy_table_kernel<<<launch_blocks(INT64_MAX, COPY_BLOCKS), LAUNCH_THREADS, 0, stream>>>(
        items, n_items);
    return launch_status("a table of copies", err);
}
