/* kernels/cuda/sum.cu - see kernels/sum.h. */
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/run.h"

template <int N>
__global__ void __launch_bounds__(LAUNCH_THREADS)
    sum_add_kernel(const __grid_constant__ struct sum_add a)
{
    for (int64_t r = blockIdx.y; r < a.rows; r += gridDim.y) {
        float *y = a.y + r * a.ldy;
        const float *x = a.x + r * a.ldx;

        pack_each<N, 2>(
            pack_of_grid(), 0, a.cols,
            [&](auto n, int64_t i) {
                return pack_set<n.value, 2>{ { pack_load<n.value>(y, i),
                                               pack_load<n.value>(x, i) } };
            },
            [&](auto, int64_t i, auto both) {
                pack_add(both.of[0], both.of[1]);
                pack_store(y, i, both.of[0]);
            });
    }
}

enum { TO_ONE_LOADS = 8 /* together */ };

/* Rows that are added to one: a thread has packs of columns of all of them. */
template <int N>
__global__ void __launch_bounds__(LAUNCH_THREADS)
    sum_to_one_kernel(const __grid_constant__ struct sum_add a)
{
    pack_each<N, 1>(
        pack_of_grid(), 0, a.cols, [&](auto n, int64_t i) { return pack_load<n.value>(a.y, i); },
        [&](auto n, int64_t i, auto y) {
            for (int64_t first = 0; first < a.rows; first += TO_ONE_LOADS) {
                pack<n.value> x[TO_ONE_LOADS] = {};

#pragma unroll
                for (int k = 0; k < TO_ONE_LOADS; k++)
                    if (first + k < a.rows)
                        x[k] = pack_load<n.value>(a.x, (first + k) * a.ldx + i);
#pragma unroll
                for (int k = 0; k < TO_ONE_LOADS; k++)
                    if (first + k < a.rows)
                        pack_add(y, x[k]);
            }
            pack_store(a.y, i, y);
        });
}

/* Blocks share the rows, and those of a long row its columns. */
void cuda_run_sum_add(struct device_queue *q, const struct sum_add *a)
{
    const bool is_packed =
        pack_is_aligned(a->y, a->x) && (a->rows == 1 || (a->ldy % PACK == 0 && a->ldx % PACK == 0));
    const int64_t packs = pack_count(a->cols, is_packed ? PACK : 1);
    unsigned x = launch_blocks(q, pack_count(packs, LAUNCH_THREADS), LAUNCH_BLOCKS);
    unsigned most = launch_blocks(q, INT64_MAX, LAUNCH_BLOCKS) / x;
    int64_t y = a->rows < (int64_t)most ? a->rows : (int64_t)most;

    if (a->rows > 1 && a->ldy == 0)
        launch_elements(q, "a sum of rows", packs,
                        is_packed ? sum_to_one_kernel<PACK> : sum_to_one_kernel<1>, *a);
    else if (a->rows > 0 && a->cols > 0)
        launch(q, "a sum", dim3(x, y < 1 ? 1 : (unsigned)y),
               is_packed ? sum_add_kernel<PACK> : sum_add_kernel<1>, *a);
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

template <int N>
__global__ void __launch_bounds__(LAUNCH_THREADS)
    sum_levels_kernel(const __grid_constant__ struct sum_levels a)
{
    pack_each<N, 1>(
        pack_of_grid(), 0, a.n, [&](auto n, int64_t i) { return pack_load<n.value>(a.x, i); },
        [&](auto n, int64_t i, auto x) {
#pragma unroll 4
            for (int k = 0; k < a.n_levels; k++)
                pack_add(x, pack_load<n.value>(a.level[k], i));
            pack_store(a.to, i, x);
        });
}

void cuda_run_sum_levels(struct device_queue *q, const struct sum_levels *a)
{
    bool is_packed = pack_is_aligned(a->to, a->x);

    for (int k = 0; k < a->n_levels; k++)
        is_packed = is_packed && pack_is_aligned(a->level[k]);
    launch_elements(q, "a sum of levels", pack_count(a->n, is_packed ? PACK : 1),
                    is_packed ? sum_levels_kernel<PACK> : sum_levels_kernel<1>, *a);
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
