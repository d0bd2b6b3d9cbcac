/* kernels/cuda/sum.cu - see kernels/sum.h. */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/run.h"

__global__ void __launch_bounds__(LAUNCH_THREADS)
    sum_add_kernel(const __grid_constant__ struct sum_add a)
{
    for (int64_t r = blockIdx.y; r < a.rows; r += gridDim.y)
        for (int64_t c = launch_thread(); c < a.cols; c += launch_threads())
            a.y[r * a.ldy + c] += a.x[r * a.ldx + c];
}

/* Blocks share the rows, and those of a long row its columns. */
void cuda_run_sum_add(struct device_queue *q, const struct sum_add *a)
{
    int64_t along = a->cols / LAUNCH_THREADS + (a->cols % LAUNCH_THREADS != 0);
    unsigned x = launch_blocks(q, along, LAUNCH_BLOCKS);
    unsigned most = launch_blocks(q, INT64_MAX, LAUNCH_BLOCKS) / x;
    int64_t y = a->rows < (int64_t)most ? a->rows : (int64_t)most;

    if (a->rows > 0 && a->cols > 0)
        launch(q, "a sum", dim3(x, y < 1 ? 1 : (unsigned)y), sum_add_kernel, *a);
}

enum { TREE_LEVELS = 21, TREE_ROWS_MAX = 1 << (TREE_LEVELS - 1) };

/* The tree of kernels/cpu/tree_reduce.h: sum[k] is over 2^k rows, as in a binary counter. */
template <typename T, typename F> static __device__ T tree_of(int64_t count, F row)
{
    T sum[TREE_LEVELS], x = 0;
    bool any = false;
    int k;

    for (int64_t s = 0; s < count; s++) {
        x = row(s);
        for (k = 0; s >> k & 1; k++)
            x = sum[k] + x;
        sum[k] = x;
    }
    for (k = 0; k < TREE_LEVELS; k++)
        if (count >> k & 1) {
            x = any ? sum[k] + x : sum[k];
            any = true;
        }
    return x;
}

/* out may be parts: a thread reads all rows of its element before it writes. */
__global__ void __launch_bounds__(LAUNCH_THREADS)
    sum_tree_kernel(const __grid_constant__ struct sum_tree a)
{
    for (int64_t i = launch_thread(); i < a.n; i += launch_threads())
        a.out[i] = tree_of<float>(a.count, [&](int64_t s) { return a.parts[s * a.step + i]; });
}

static void refuse(struct device_queue *q, const char *what, int64_t n)
{
    struct tp_err err;

    tp_fail(&err, TP_E_INTERNAL, "a sum %s of %lld numbers: a GPU adds 1 to %d", what, (long long)n,
            TREE_ROWS_MAX);
    device_fail(q->device, &err);
}

void cuda_run_sum_tree(struct device_queue *q, const struct sum_tree *a)
{
    if (a->count < 1 || a->count > TREE_ROWS_MAX)
        refuse(q, "along the tree", a->count);
    else
        launch_elements(q, "a sum along the tree", a->n, sum_tree_kernel, *a);
}

__global__ void __launch_bounds__(LAUNCH_THREADS)
    sum_levels_kernel(const __grid_constant__ struct sum_levels a)
{
    for (int64_t i = launch_thread(); i < a.n; i += launch_threads()) {
        float x = a.x[i];

        for (int k = 0; k < a.n_levels; k++)
            x += a.level[k][i];
        a.to[i] = x;
    }
}

void cuda_run_sum_levels(struct device_queue *q, const struct sum_levels *a)
{
    launch_elements(q, "a sum of levels", a->n, sum_levels_kernel, *a);
}

/* One block, because out may be in: after the barrier, nobody reads what its threads write. */
__global__ void __launch_bounds__(LAUNCH_THREADS)
    sum_doubles_kernel(const __grid_constant__ struct sum_doubles a)
{
    for (int64_t first = 0; first < a.n; first += LAUNCH_THREADS) {
        int64_t i = first + threadIdx.x;
        double sum = 0;

        for (int64_t k = 0; i < a.n && k < a.size; k++)
            sum += a.in[i * a.size + k];
        __syncthreads();
        if (i < a.n)
            a.out[i] = sum;
    }
}

void cuda_run_sum_doubles(struct device_queue *q, const struct sum_doubles *a)
{
    if (a->n > 0)
        launch(q, "sums of doubles", dim3(1), sum_doubles_kernel, *a);
}

__global__ void __launch_bounds__(LAUNCH_THREADS)
    sum_halves_kernel(const __grid_constant__ struct sum_halves a)
{
    if (threadIdx.x == 0)
        *a.out = tree_of<double>(a.n, [&](int64_t s) { return a.in[s]; });
}

void cuda_run_sum_halves(struct device_queue *q, const struct sum_halves *a)
{
    if (a->n < 1 || a->n > TREE_ROWS_MAX || (a->n & (a->n - 1)))
        refuse(q, "by halves", a->n);
    else
        launch(q, "a sum by halves", dim3(1), sum_halves_kernel, *a);
}
