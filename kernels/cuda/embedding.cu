/* kernels/cuda/embedding.cu - see kernels/embedding.h. */
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/run.h"

/* A warp has a row. Four blocks on a processor: else the compiler takes fewer registers, and
 * spills. */
template <int N>
__global__ void __launch_bounds__(LAUNCH_THREADS, 4)
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

/* ---- backward ----
 *
 * In a text of bytes a row may have thousands of tokens, in a vocabulary of words most have a few.
 * So tokens are sorted by their row, stably, and warps sum parts of equal size of the sorted ones.
 * A second kernel joins the sums of rows whose tokens are in several parts. The order of the sums
 * depends on the ids only. */

enum { SORT_TOKENS = 8 /* of a warp */, PART_TOKENS = 32, PART_LOADS = 8 /* together */ };

/* Tokens in the order of their rows. */
struct sorted_tokens {
    int32_t *places; /* [n]: numbers of tokens */
    int32_t *rows;   /* [n]: their rows; a.rows where another rank has them */
    float *begins;   /* [parts][cols]: the sum of a part's first row, if it began before the part */
    float *ends;     /* of its last row, if that goes on after the part, and began in it */
};

static __device__ inline int32_t row_of(const struct embedding_backward &a, int64_t i)
{
    const int64_t row = a.ids[i] - a.first;

    return (int32_t)(row >= 0 && row < a.rows ? row : a.rows);
}

/* Add to before[t], of this lane, the number of tokens from `from` to `to` - 1 whose row is less
 * than row[t] + more. */
static __device__ inline void count_less(int (&before)[SORT_TOKENS],
                                         const struct embedding_backward &a,
                                         const int32_t (&row)[SORT_TOKENS], int more, int64_t from,
                                         int64_t to)
{
#pragma unroll 4
    for (int64_t k = from + launch_lane(); k < to; k += 32) {
        const int32_t other = row_of(a, k);

#pragma unroll
        for (int t = 0; t < SORT_TOKENS; t++)
            before[t] += other < row[t] + more;
    }
}

/* The place of a token is the number of those that come before it. To count them takes n^2
 * comparisons: of 16384 tokens, less time than the launches of another way to sort.
 * Four blocks on a processor: else sm_100's compiler takes fewer registers, and spills. */
__global__ void __launch_bounds__(LAUNCH_THREADS, 4)
    embedding_sort_kernel(const __grid_constant__ struct embedding_backward a,
                          const __grid_constant__ struct sorted_tokens s)
{
    const int64_t first = launch_warp() * SORT_TOKENS;
    const int64_t end = first + SORT_TOKENS < a.n ? first + SORT_TOKENS : a.n;
    int32_t row[SORT_TOKENS];
    int before[SORT_TOKENS] = {};

    if (first >= a.n)
        return;
    for (int t = 0; t < SORT_TOKENS; t++)
        row[t] = first + t < end ? row_of(a, first + t) : 0;
    count_less(before, a, row, 1, 0, first);
    count_less(before, a, row, 0, end, a.n);
#pragma unroll
    for (int t = 0; t < SORT_TOKENS; t++) {
        int place = reduce_warp(before[t], reduce_sum());

#pragma unroll
        for (int k = 0; k < SORT_TOKENS; k++)
            if (first + k < end && k != t)
                place += row[k] < row[t] + (k < t);
        if (first + t < end && launch_lane() == 0) {
            s.places[place] = (int32_t)(first + t);
            s.rows[place] = row[t];
        }
    }
}

template <int N> static __device__ inline void add_to(float *p, int64_t at, struct pack<N> sum)
{
    pack_add(sum, pack_load<N>(p, at));
    pack_store(p, at, sum);
}

/* A warp has 32 packs of columns of a part. */
template <int N>
__global__ void __launch_bounds__(LAUNCH_THREADS)
    embedding_sum_kernel(const __grid_constant__ struct embedding_backward a,
                         const __grid_constant__ struct sorted_tokens s)
{
    const int64_t slices = pack_count(a.cols, 32 * N), p = launch_warp() / slices;
    const int64_t mine = p * PART_TOKENS + launch_lane();
    const int64_t c = (launch_warp() % slices * 32 + launch_lane()) * N;
    const int32_t place = mine < a.n ? s.places[mine] : 0;
    const int32_t row = mine < a.n ? s.rows[mine] : (int32_t)a.rows;
    const int64_t next_part = (p + 1) * PART_TOKENS;
    const int32_t before =
        p > 0 && next_part - PART_TOKENS < a.n ? s.rows[p * PART_TOKENS - 1] : -1;
    const int32_t after = next_part < a.n ? s.rows[next_part] : -1;
    struct pack<N> sum = {
    };

    for (int first = 0; first < PART_TOKENS; first += PART_LOADS) {
        struct pack<N> x[PART_LOADS] = {
        };

#pragma unroll
        for (int k = 0; k < PART_LOADS; k++) {
            const int64_t from = __shfl_sync(0xffffffffu, place, first + k);

            if (__shfl_sync(0xffffffffu, row, first + k) < a.rows && c < a.cols)
                x[k] = pack_load<N>(a.dx, from * a.cols + c);
        }
#pragma unroll
        for (int k = 0; k < PART_LOADS; k++) {
            const int at = first + k;
            const int32_t of = __shfl_sync(0xffffffffu, row, at);
            const bool is_last = at == PART_TOKENS - 1;
            const int32_t next = __shfl_sync(0xffffffffu, row, (at + 1) % PART_TOKENS);

            pack_add(sum, x[k]);
            if (of == next && !is_last)
                continue;
            if (of < a.rows && c < a.cols) {
                const bool is_begin = of == before, is_end = is_last && of == after;

                if (is_begin || is_end)
                    pack_store(is_begin ? s.begins : s.ends, p * a.cols + c, sum);
                else
                    add_to(a.dtable, of * a.cols + c, sum);
            }
            sum = {};
        }
    }
}

/* Add the sums of the row that begins in this warp's part and goes on after it, if there is one. */
template <int N>
__global__ void __launch_bounds__(LAUNCH_THREADS)
    embedding_join_kernel(const __grid_constant__ struct embedding_backward a,
                          const __grid_constant__ struct sorted_tokens s)
{
    const int64_t slices = pack_count(a.cols, 32 * N), p = launch_warp() / slices;
    const int64_t first = p * PART_TOKENS, next = first + PART_TOKENS;
    const int64_t c = (launch_warp() % slices * 32 + launch_lane()) * N;

    if (next >= a.n || s.rows[next - 1] >= a.rows || s.rows[next] != s.rows[next - 1] ||
        (first > 0 && s.rows[first - 1] == s.rows[next]))
        return;
    const int64_t row = s.rows[next];
    int64_t parts = 1; /* after this one */

    for (int64_t k = next + PART_TOKENS * (1 + launch_lane());; k += 32 * PART_TOKENS) {
        const unsigned others = __ballot_sync(0xffffffffu, k >= a.n || s.rows[k] != row);

        parts += __popc((others - 1) & ~others); /* ends at the first lane that sees another row */
        if (others)
            break;
    }
    if (c >= a.cols)
        return;
    struct pack<N> sum = pack_load<N>(s.ends, p * a.cols + c);

#pragma unroll 8
    for (int64_t k = 1; k <= parts; k++)
        pack_add(sum, pack_load<N>(s.begins, (p + k) * a.cols + c));
    add_to(a.dtable, row * a.cols + c, sum);
}

static bool sorted_open(struct sorted_tokens *s, struct device_queue *q,
                        const struct embedding_backward *a, int64_t parts)
{
    const int64_t floats = 2 * parts * a->cols;

    s->begins = static_cast<float *>(
        device_scratch(q, floats * (int64_t)sizeof(float) + 2 * a->n * (int64_t)sizeof(int32_t)));
    s->ends = s->begins + parts * a->cols;
    s->places = reinterpret_cast<int32_t *>(s->begins + floats);
    s->rows = s->places + a->n;
    return s->begins; /* else the device keeps the failure */
}

void cuda_run_embedding_backward(struct device_queue *q, const struct embedding_backward *a)
{
    const bool is_packed = a->cols % PACK == 0 && pack_is_aligned(a->dtable, a->dx);
    const int64_t parts = pack_count(a->n, PART_TOKENS);
    const int64_t warps = parts * pack_count(a->cols, is_packed ? 32 * PACK : 32);
    struct sorted_tokens s;

    if (warps == 0 || !sorted_open(&s, q, a, parts))
        return;
    launch_each(q, "the order of tokens", pack_count(a->n, SORT_TOKENS * LAUNCH_WARPS),
                embedding_sort_kernel, *a, s);
    launch_each(q, "the gradient of an embedding", launch_warp_blocks(warps),
                is_packed ? embedding_sum_kernel<PACK> : embedding_sum_kernel<1>, *a, s);
    launch_each(q, "the gradient of an embedding", launch_warp_blocks(warps),
                is_packed ? embedding_join_kernel<PACK> : embedding_join_kernel<1>, *a, s);
}
