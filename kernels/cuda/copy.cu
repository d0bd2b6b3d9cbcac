/*
 * kernels/cuda/copy.cu - gather and split of boxes in device memory: one persistent kernel over a
 * table of descriptors. The index arithmetic and the loads and stores are those of
 * kernels/copy_body.h.
 */
#include "kernels/cpu/copy_table_body.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/run.h"

enum { COPY_BLOCKS = 4 }; /* on a processor: 1024 threads of at most 64 registers */

__global__ void __launch_bounds__(LAUNCH_THREADS, COPY_BLOCKS)
    copy_one_kernel(const __grid_constant__ struct copy_item item, int64_t warps)
{
    for (int64_t warp = launch_warp(); warp < warps; warp += launch_warps())
        copy_item_work(&item, warp, launch_lane());
}

/* The items are as one long row of warps, so all of the grid's warps have the same work, whatever
 * the items are. */
__global__ void __launch_bounds__(LAUNCH_THREADS, COPY_BLOCKS)
    copy_table_kernel(const __grid_constant__ struct copy_table a)
{
    int i = 0;

    for (int64_t warp = launch_warp(); warp < a.warps; warp += launch_warps()) {
        i = copy_items_find(a.items, a.n_items, i, warp);
        copy_table_work(&a.items[i], warp - a.items[i].first_warp, launch_lane());
    }
}

void cuda_run_copy_box(struct device_queue *q, const struct copy_box *a)
{
    struct copy_item item;
    int64_t warps;

    copy_item_make(&item, a, DTYPE_U8, DTYPE_U8);
    if (item.rows.n_rows == 0)
        return;
    warps = copy_item_warps(&item);
    launch(q, "a copy", dim3(launch_blocks(q, launch_warp_blocks(warps), COPY_BLOCKS)),
           copy_one_kernel, item, warps);
}

void cuda_run_copy_table(struct device_queue *q, const struct copy_table *a)
{
    if (a->warps > 0)
        launch(q, "a table of copies",
               dim3(launch_blocks(q, launch_warp_blocks(a->warps), COPY_BLOCKS)), copy_table_kernel,
               *a);
}
