/* kernels/cuda/embedding.cu - see kernels/embedding.h. */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/run.h"

__global__ void __launch_bounds__(LAUNCH_THREADS)
    embedding_forward_kernel(const __grid_constant__ struct embedding_forward a)
{
    for (int64_t i = blockIdx.x; i < a.n; i += gridDim.x) {
        int64_t row = a.ids[i] - a.first;
        bool is_here = row >= 0 && row < a.rows;

        for (int64_t c = threadIdx.x; c < a.cols; c += LAUNCH_THREADS)
            a.x[i * a.cols + c] = is_here ? launch_load(a.table, a.type, row * a.cols + c) : 0;
    }
}

void cuda_run_embedding_forward(struct device_queue *q, const struct embedding_forward *a)
{
    launch_rows(q, "an embedding", a->n, embedding_forward_kernel, *a);
}

/* Whether ids[i] is in ids[0 .. i - 1]; the same answer for all threads of the block. */
static __device__ bool came_before(const int32_t *ids, int64_t i)
{
    int32_t id = ids[i];

    for (int64_t first = 0; first < i; first += LAUNCH_THREADS) {
        int64_t k = first + threadIdx.x;

        if (__syncthreads_or(k < i && ids[k] == id))
            return true;
    }
    return false;
}

/* A block adds up everything for the id that it is the first to have, in order of i; so no two
 * blocks add to the same row, and no order depends on timing. */
__global__ void __launch_bounds__(LAUNCH_THREADS)
    embedding_backward_kernel(const __grid_constant__ struct embedding_backward a)
{
    for (int64_t i = blockIdx.x; i < a.n; i += gridDim.x) {
        int64_t row = a.ids[i] - a.first;

        if (row < 0 || row >= a.rows || came_before(a.ids, i))
            continue;
        for (int64_t k = i; k < a.n; k++) {
            if (a.ids[k] != a.ids[i])
                continue;
            for (int64_t c = threadIdx.x; c < a.cols; c += LAUNCH_THREADS)
                a.dtable[row * a.cols + c] += a.dx[k * a.cols + c];
        }
    }
}

void cuda_run_embedding_backward(struct device_queue *q, const struct embedding_backward *a)
{
    launch_rows(q, "the gradient of an embedding", a->n, embedding_backward_kernel, *a);
}
