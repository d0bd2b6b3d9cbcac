/*
 * kernels/cuda/permute.cu - see kernels/permute.h. Copies are sorted by counting, without atomics,
 * so their order is that of the CPU.
 */
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/run.h"
#include "kernels/cuda/scan.cuh"
#include "kernels/permute.h"

/* ---- sorting ---- */

/* place[i]: how many copies before i in its chunk have the same expert. counts[chunk][expert]: how
 * many the chunk has; it is 0 at first. */
__global__ void __launch_bounds__(LAUNCH_THREADS)
    permute_rank_kernel(const __grid_constant__ struct permute_sort a, int32_t *counts)
{
    __shared__ int32_t experts[LAUNCH_THREADS];
    const int own = (int)threadIdx.x;

    for (int64_t chunk = blockIdx.x; chunk * LAUNCH_THREADS < a.n; chunk += gridDim.x) {
        const int64_t i = chunk * LAUNCH_THREADS + own;
        const int32_t expert = i < a.n ? a.chosen[i] : -1;
        int before = 0, after = 0;

        __syncthreads(); /* the chunk before may still be read */
        experts[own] = expert;
        __syncthreads();
        for (int j = 0; j < LAUNCH_THREADS; j++) {
            before += j < own && experts[j] == expert;
            after += j > own && experts[j] == expert;
        }
        if (i < a.n)
            a.place[i] = before;
        if (i < a.n && after == 0)
            counts[chunk * a.experts + expert] = before + 1;
    }
}

/* counts becomes how many copies earlier chunks have, and offsets[e + 1] how many expert e has. A
 * warp has an expert. */
__global__ void __launch_bounds__(LAUNCH_THREADS)
    permute_chunks_kernel(const __grid_constant__ struct permute_sort a, int32_t *counts,
                          int64_t chunks)
{
    for (int64_t e = launch_warp(); e < a.experts; e += launch_warps()) {
        int32_t total = 0;

        for (int64_t first = 0; first < chunks; first += 32) {
            const int64_t chunk = first + launch_lane();
            const int32_t n = chunk < chunks ? counts[chunk * a.experts + e] : 0;
            const int32_t upto = scan_warp(n);

            if (chunk < chunks)
                counts[chunk * a.experts + e] = total + upto - n;
            total += __shfl_sync(0xffffffffu, upto, 31);
        }
        if (launch_lane() == 0)
            a.offsets[e + 1] = total;
    }
}

__global__ void __launch_bounds__(LAUNCH_THREADS) permute_offsets_kernel(int32_t *offsets, int n)
{
    scan_block(offsets, n, [&](int e) { return offsets[e + 1]; });
}

__global__ void __launch_bounds__(LAUNCH_THREADS)
    permute_place_kernel(const __grid_constant__ struct permute_sort a, const int32_t *counts)
{
    for (int64_t i = launch_thread(); i < a.n; i += launch_threads()) {
        const int32_t e = a.chosen[i];
        const int32_t row = a.offsets[e] + counts[i / LAUNCH_THREADS * a.experts + e] + a.place[i];

        a.place[i] = row;
        a.source[row] = (int32_t)i;
    }
}

void cuda_run_permute_sort(struct device_queue *q, const struct permute_sort *a)
{
    const int64_t chunks = (a->n + LAUNCH_THREADS - 1) / LAUNCH_THREADS;
    const int64_t n_bytes = chunks * a->experts * (int64_t)sizeof(int32_t);
    int32_t *counts;

    if (a->n == 0) {
        device_fill(q, a->offsets, 0, (a->experts + 1) * (int64_t)sizeof *a->offsets);
        return;
    }
    if (!(counts = static_cast<int32_t *>(device_scratch(q, n_bytes))))
        return; /* the device keeps the failure */
    device_fill(q, counts, 0, n_bytes);
    launch_rows(q, "sorting copies", chunks, permute_rank_kernel, *a, counts);
    launch_warp_rows(q, "sorting copies", a->experts, permute_chunks_kernel, *a, counts, chunks);
    launch(q, "sorting copies", dim3(1), permute_offsets_kernel, a->offsets, a->experts);
    launch_elements(q, "sorting copies", a->n, permute_place_kernel, *a, counts);
}

__global__ void __launch_bounds__(LAUNCH_THREADS)
    permute_dispatch_kernel(const __grid_constant__ struct permute_dispatch a)
{
    const int own = a.experts / a.size;

    scan_block(a.groups, own * a.size, [&](int i) {
        const int32_t *from = a.all_offsets + (i / own) * (a.experts + 1) + a.rank * own + i % own;

        return from[1] - from[0];
    });
    __syncthreads();
    for (int r = (int)threadIdx.x; r <= a.size; r += LAUNCH_THREADS) {
        a.send[r] = a.all_offsets[a.rank * (a.experts + 1) + r * own];
        a.recv[r] = a.groups[r * own];
    }
}

void cuda_run_permute_dispatch(struct device_queue *q, const struct permute_dispatch *a)
{
    launch(q, "what ranks exchange", dim3(1), permute_dispatch_kernel, *a);
}

/* ---- copies ---- */

/* A warp copies a row of so many words. */
template <typename T>
__global__ void __launch_bounds__(LAUNCH_THREADS)
    permute_rows_kernel(const __grid_constant__ struct permute_rows a, int64_t words)
{
    for (int64_t j = launch_warp(); j < a.n; j += launch_warps()) {
        const T *from = static_cast<const T *>(a.x) + a.source[j] / a.per_row * words;
        T *to = static_cast<T *>(a.y) + j * words;

#pragma unroll 4
        for (int64_t i = launch_lane(); i < words; i += 32)
            to[i] = from[i];
    }
}

static bool is_multiple(const void *p, int64_t n_bytes, int64_t of)
{
    return (uintptr_t)p % (uintptr_t)of == 0 && n_bytes % of == 0;
}

void cuda_run_permute_rows(struct device_queue *q, const struct permute_rows *a)
{
    const int64_t n_bytes = a->cols * dtype_bytes(a->type);

    if (is_multiple(a->x, n_bytes, 16) && is_multiple(a->y, n_bytes, 16))
        launch_warp_rows(q, "copies of rows", a->n, permute_rows_kernel<uint4>, *a, n_bytes / 16);
    else if (a->type == DTYPE_F32)
        launch_warp_rows(q, "copies of rows", a->n, permute_rows_kernel<uint32_t>, *a, a->cols);
    else
        launch_warp_rows(q, "copies of rows", a->n, permute_rows_kernel<uint16_t>, *a, a->cols);
}

/* ---- sums ---- */

/* A warp has a row. `type` is that of a.x. */
template <enum dtype type, int N>
__global__ void __launch_bounds__(LAUNCH_THREADS)
    permute_sum_kernel(const __grid_constant__ struct permute_sum a)
{
    constexpr int together = type == DTYPE_BF16 ? 2 : 4; /* copies; more would spill */

    for (int64_t r = launch_warp(); r < a.rows; r += launch_warps())
        for (int64_t c = launch_lane() * N; c < a.cols; c += 32 * N) {
            struct pack<N> sum = {
            };

            if (a.add)
                sum = pack_load<N>(a.y, a.y_type, r * a.cols + c);
#pragma unroll together
            for (int64_t i = r * a.per_row; i < (r + 1) * a.per_row; i++) {
                const float by = a.weights ? a.weights[i] : 1;
                const auto x = pack_load<N>(a.x, type, a.place[i] * a.cols + c);

#pragma unroll
                for (int j = 0; j < N; j++)
                    sum.x[j] += by * x.x[j];
            }
            pack_store(a.y, a.y_type, r * a.cols + c, sum);
        }
}

void cuda_run_permute_sum(struct device_queue *q, const struct permute_sum *a)
{
    const bool is_packed = a->cols % pack_most(a->x_type) == 0 && pack_is_aligned(a->x, a->y);

    pack_select(a->x_type, is_packed, [=](auto type, auto n) {
        launch_warp_rows(q, "sums of copies", a->rows, permute_sum_kernel<type.value, n.value>, *a);
    });
}

/* ---- gradients of the weights ---- */

/* A block has a row. `type` is that of a.hidden. */
template <enum dtype type, int N>
__global__ void __launch_bounds__(LAUNCH_THREADS, 4)
    permute_weight_backward_kernel(const __grid_constant__ struct permute_weight_backward a)
{
    const int64_t rows = a.count ? *a.count : a.n;

    for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
        const int64_t copy = a.source ? a.source[r] : r;
        const float by = a.weights[copy];
        float sum = 0;

        pack_each<N, 1>(
            pack_of_block(), 0, a.cols,
            [&](auto n, int64_t c) {
                return pack_set<n.value, 2>{
                    { pack_load<n.value>(a.dhidden, a.dhidden_type, r * a.cols + c),
                      pack_load<n.value>(a.hidden, type, r * a.cols + c) }
                };
            },
            [&](auto n, int64_t c, auto both) {
#pragma unroll
                for (int j = 0; j < n.value; j++) {
                    sum += both.of[0].x[j] * both.of[1].x[j];
                    both.of[0].x[j] *= by;
                    both.of[1].x[j] *= by;
                }
                pack_store(a.dhidden, a.dhidden_type, r * a.cols + c, both.of[0]);
                pack_store(a.hidden, type, r * a.cols + c, both.of[1]);
            });
        sum = reduce_block(sum, reduce_sum());
        if (threadIdx.x == 0)
            a.dweights[copy] = sum;
    }
}

void cuda_run_permute_weight_backward(struct device_queue *q,
                                      const struct permute_weight_backward *a)
{
    const bool is_packed =
        a->cols % pack_most(a->type) == 0 && pack_is_aligned(a->dhidden, a->hidden);

    pack_select(a->type, is_packed, [=](auto type, auto n) {
        launch_rows(q, "the gradient of the weights of copies", a->n,
                    permute_weight_backward_kernel<type.value, n.value>, *a);
    });
}
