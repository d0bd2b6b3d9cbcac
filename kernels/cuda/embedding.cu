/* kernels/cuda/embedding.cu - see kernels/embedding.h. */
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/run.h"
#include "kernels/cuda/scan.cuh"

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

enum { PART_TOKENS = 32, PART_LOADS = 8 /* together */ };

/* Tokens in the order of their rows. */
struct sorted_tokens {
    int32_t *places; /* [n]: numbers of tokens */
    int32_t *rows;   /* [n]: their rows; a.rows where another rank has them */
    int32_t *other;  /* [n]: between passes of the sort */
    int32_t *counts; /* [tiles][SORT_DIGITS] */
    float *begins;   /* [parts][cols]: the sum of a part's first row, if it began before the part */
    float *ends;     /* of its last row, if that goes on after the part, and began in it */
};

static __device__ inline int32_t row_of(const struct embedding_backward &a, int64_t i)
{
    const int64_t row = a.ids[i] - a.first;

    return (int32_t)(row >= 0 && row < a.rows ? row : a.rows);
}

/* ---- the sort: by digits of rows, the lowest first (a radix sort) ----
 *
 * Two launches for each digit: one counts the digits of each tile of tokens, one puts tokens where
 * the counts say. A vocabulary of up to a million rows has two digits. */

enum {
    SORT_TOKENS = 8, /* of a thread */
    SORT_TILE = SORT_TOKENS * LAUNCH_THREADS,
    SORT_BITS = 10, /* of a digit, at most */
    SORT_DIGITS = 1 << SORT_BITS
};

struct sort_pass {
    const int32_t *from; /* [n]: tokens in the order of the digits before; NULL: as they come */
    int32_t *to;         /* [n]: in the order of this one too */
    int32_t *rows;       /* [n]: the rows of `to`; or NULL */
    int32_t *counts;     /* [tiles][digits]; NULL: there is one tile */
    int shift, digits;   /* row / 2^shift % digits */
};

static __device__ inline int digit_of(const struct sort_pass &p, int32_t row)
{
    return row >> p.shift & (p.digits - 1);
}

/* A thread's tokens, of a tile. Tokens of a warp follow each other, 32 at a time. */
struct sort_tile {
    int32_t token[SORT_TOKENS]; /* -1: none */
    int32_t row[SORT_TOKENS];
    int32_t rank[SORT_TOKENS]; /* tokens before it, of its warp, that have its digit */
};

/* The lanes that have the same digit as this one, of those that have a token. */
static __device__ inline unsigned lanes_alike(const struct sort_pass &p, int digit, bool has_token)
{
    unsigned alike = __ballot_sync(0xffffffffu, has_token);

    for (int bit = 1; bit < p.digits; bit *= 2) {
        const unsigned have = __ballot_sync(0xffffffffu, digit & bit);

        alike &= digit & bit ? have : ~have;
    }
    return alike;
}

/* Load and rank the block's tile. counts: how many tokens of the warp have a digit. */
static __device__ inline void rank_tile(struct sort_tile &t, int32_t (&counts)[SORT_DIGITS],
                                        const struct embedding_backward &a,
                                        const struct sort_pass &p)
{
    const int64_t first = launch_warp() * 32 * SORT_TOKENS + launch_lane();

    for (int d = launch_lane(); d < p.digits; d += 32)
        counts[d] = 0;
    __syncwarp();
#pragma unroll
    for (int k = 0; k < SORT_TOKENS; k++) {
        const int64_t i = first + k * 32;

        t.token[k] = i >= a.n ? -1 : p.from ? p.from[i] : (int32_t)i;
    }
#pragma unroll
    for (int k = 0; k < SORT_TOKENS; k++)
        t.row[k] = t.token[k] < 0 ? 0 : row_of(a, t.token[k]);
#pragma unroll
    for (int k = 0; k < SORT_TOKENS; k++) {
        const int digit = digit_of(p, t.row[k]);
        const unsigned alike = lanes_alike(p, digit, t.token[k] >= 0);
        const int before = __popc(alike & ((1u << launch_lane()) - 1));

        t.rank[k] = counts[digit] + before;
        __syncwarp();
        if (t.token[k] >= 0 && before == 0)
            counts[digit] += __popc(alike);
        __syncwarp();
    }
}

__global__ void __launch_bounds__(LAUNCH_THREADS)
    embedding_count_kernel(const __grid_constant__ struct embedding_backward a,
                           const __grid_constant__ struct sort_pass p)
{
    __shared__ int32_t counts[LAUNCH_WARPS][SORT_DIGITS];
    struct sort_tile t;

    rank_tile(t, counts[threadIdx.x / 32], a, p);
    __syncthreads();
    for (int d = (int)threadIdx.x; d < p.digits; d += LAUNCH_THREADS) {
        int32_t sum = 0;

        for (int w = 0; w < LAUNCH_WARPS; w++)
            sum += counts[w][d];
        p.counts[(int64_t)blockIdx.x * p.digits + d] = sum;
    }
}

/* counts[w][d], of the block's warps: becomes how many tokens with digit d are in tiles and warps
 * before. Returns how many there are in all tiles. */
static __device__ inline int32_t count_before(int32_t (&counts)[LAUNCH_WARPS][SORT_DIGITS], int d,
                                              const struct sort_pass &p)
{
    int32_t before = 0, all = 0, of_tile = 0;

#pragma unroll 8
    for (unsigned tile = 0; p.counts && tile < gridDim.x; tile++) {
        const int32_t n = p.counts[(int64_t)tile * p.digits + d];

        before += tile < blockIdx.x ? n : 0;
        all += n;
    }
    for (int w = 0; w < LAUNCH_WARPS; w++) {
        const int32_t n = counts[w][d];

        counts[w][d] = before + of_tile;
        of_tile += n;
    }
    return p.counts ? all : of_tile;
}

__global__ void __launch_bounds__(LAUNCH_THREADS)
    embedding_sort_kernel(const __grid_constant__ struct embedding_backward a,
                          const __grid_constant__ struct sort_pass p)
{
    __shared__ int32_t counts[LAUNCH_WARPS][SORT_DIGITS], starts[SORT_DIGITS + 1];
    const int warp = (int)(threadIdx.x / 32);
    struct sort_tile t;

    rank_tile(t, counts[warp], a, p);
    __syncthreads();
    for (int d = (int)threadIdx.x; d < p.digits; d += LAUNCH_THREADS)
        starts[d + 1] = count_before(counts, d, p);
    __syncthreads();
    scan_block(starts, p.digits, [&](int d) { return starts[d + 1]; });
    __syncthreads();
#pragma unroll
    for (int k = 0; k < SORT_TOKENS; k++) {
        const int d = digit_of(p, t.row[k]);
        const int place = starts[d] + counts[warp][d] + t.rank[k];

        if (t.token[k] < 0)
            continue;
        p.to[place] = t.token[k];
        if (p.rows)
            p.rows[place] = t.row[k];
    }
}

static void sort_tokens(struct device_queue *q, const struct embedding_backward *a,
                        const struct sorted_tokens *s)
{
    const int64_t tiles = pack_count(a->n, SORT_TILE);
    struct sort_pass p = {};
    int bits = 1, passes;

    while (a->rows >> bits)
        bits++;
    passes = (bits + SORT_BITS - 1) / SORT_BITS;
    bits = (bits + passes - 1) / passes;
    p.digits = 1 << bits;
    p.counts = tiles > 1 ? s->counts : nullptr;
    for (int i = 0; i < passes; i++) {
        p.shift = i * bits;
        p.to = (passes - i) % 2 ? s->places : s->other;
        p.rows = i == passes - 1 ? s->rows : nullptr;
        if (p.counts)
            launch_each(q, "digits of tokens", tiles, embedding_count_kernel, *a, p);
        launch_each(q, "the order of tokens", tiles, embedding_sort_kernel, *a, p);
        p.from = p.to;
    }
}

/* ---- the sums ---- */

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
    const int64_t floats = 2 * parts * a->cols, tiles = pack_count(a->n, SORT_TILE);
    const int64_t integers = 3 * a->n + tiles * SORT_DIGITS;

    s->begins = static_cast<float *>(
        device_scratch(q, floats * (int64_t)sizeof(float) + integers * (int64_t)sizeof(int32_t)));
    s->ends = s->begins + parts * a->cols;
    s->places = reinterpret_cast<int32_t *>(s->begins + floats);
    s->rows = s->places + a->n;
    s->other = s->rows + a->n;
    s->counts = s->other + a->n;
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
    sort_tokens(q, a, &s);
    launch_each(q, "the gradient of an embedding", launch_warp_blocks(warps),
                is_packed ? embedding_sum_kernel<PACK> : embedding_sum_kernel<1>, *a, s);
    launch_each(q, "the gradient of an embedding", launch_warp_blocks(warps),
                is_packed ? embedding_join_kernel<PACK> : embedding_join_kernel<1>, *a, s);
}
