/* kernels/cuda/embedding.cu - see kernels/embedding.h. */
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/run.h"

/* A warp has a row. */
template <int N>
__global__ void __launch_bounds__(LAUNCH_THREADS)
    embedding_forward_kernel(const __grid_constant__ struct embedding_forward a)
{
    for (int64_t i = launch_warp(); i < a.n; i += launch_warps()) {
        const int64_t row = a.ids[i] - a.first;
        const bool is_here = row >= 0 && row < a.rows;

        pack_each<N, 4>(
            pack_of_warp(), 0, a.cols,
            [&](auto n, int64_t c) {
                return is_here ? pack_load<n.value>(a.table, a.type, row * a.cols + c)
                               : pack<n.value>{};
            },
            [&](auto, int64_t c, auto x) { pack_store(a.x, i * a.cols + c, x); });
    }
}

void cuda_run_embedding_forward(struct device_queue *q, const struct embedding_forward *a)
{
    const bool is_packed = a->cols % PACK == 0 && pack_is_aligned(a->x, a->table);

    launch_warp_rows(q, "an embedding", a->n,
                     is_packed ? embedding_forward_kernel<PACK> : embedding_forward_kernel<1>, *a);
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

/* The places first .. first + LAUNCH_THREADS - 1 that have this id, in order: places[0 .. n - 1] of
 * the result n. All threads of the block call it, with the same arguments. */
static __device__ int find_places(int32_t *places, const int32_t *ids, int64_t n, int32_t id,
                                  int64_t first)
{
    __shared__ int of_warp[LAUNCH_WARPS];
    const int64_t k = first + threadIdx.x;
    const bool is_same = k < n && ids[k] == id;
    const unsigned same = __ballot_sync(0xffffffffu, is_same);
    const int warp = (int)threadIdx.x / 32;
    int before = 0, all = 0;

    __syncthreads(); /* the places before may still be read */
    if (launch_lane() == 0)
        of_warp[warp] = __popc(same);
    __syncthreads();
    for (int w = 0; w < LAUNCH_WARPS; w++) {
        before += w < warp ? of_warp[w] : 0;
        all += of_warp[w];
    }
    if (is_same)
        places[before + __popc(same & ((1u << launch_lane()) - 1))] = (int32_t)k;
    __syncthreads();
    return all;
}

/* A block adds up everything for the id that it is the first to have, in order of i; so no two
 * blocks add to the same row, and no order depends on timing. It looks for the id at many places at
 * once, because a frequent one is at thousands of them. */
template <int N>
__global__ void __launch_bounds__(LAUNCH_THREADS)
    embedding_backward_kernel(const __grid_constant__ struct embedding_backward a)
{
    __shared__ int32_t places[LAUNCH_THREADS];

    for (int64_t i = blockIdx.x; i < a.n; i += gridDim.x) {
        const int64_t row = a.ids[i] - a.first;

        if (row < 0 || row >= a.rows || came_before(a.ids, i))
            continue;
        for (int64_t first = i; first < a.n; first += LAUNCH_THREADS) {
            const int n = find_places(places, a.ids, a.n, a.ids[i], first);

            for (int64_t c = threadIdx.x * N; n > 0 && c < a.cols; c += LAUNCH_THREADS * N) {
                struct pack<N> sum = pack_load<N>(a.dtable, row * a.cols + c);

#pragma unroll 4
                for (int k = 0; k < n; k++)
                    pack_add(sum, pack_load<N>(a.dx, places[k] * a.cols + c));
                pack_store(a.dtable, row * a.cols + c, sum);
            }
        }
    }
}

void cuda_run_embedding_backward(struct device_queue *q, const struct embedding_backward *a)
{
    const bool is_packed = a->cols % PACK == 0 && pack_is_aligned(a->dtable, a->dx);

    launch_rows(q, "the gradient of an embedding", a->n,
                is_packed ? embedding_backward_kernel<PACK> : embedding_backward_kernel<1>, *a);
}
