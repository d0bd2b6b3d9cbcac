/*
 * kernels/cuda/attention_wgmma.cuh - what the kernels of attention_wgmma_forward.cu and
 * attention_wgmma_backward.cu share: rows in shared memory as warpgroups read them (wgmma.cuh), and
 * the two products of a block's own rows with a tile of 64 others.
 *
 * A block has 128 rows of its own, in shared memory, and two warpgroups, each for 64 of them. Which
 * rows a warp and a lane have is as in attention_mma.cuh with M = 1, so softmax, masks and stores
 * are those. Heads have exactly D columns, 64 or 128.
 */
#ifndef KERNELS_CUDA_ATTENTION_WGMMA_CUH
#define KERNELS_CUDA_ATTENTION_WGMMA_CUH

#include "kernels/cuda/attention_mma.cuh"
#include "kernels/cuda/wgmma.cuh"

/* N rows of a head. */
template <int D, int N> struct attention_wgmma_rows {
    enum { ROWS = N };
    struct wgmma_panel<N> panel[D / WGMMA_COLUMNS];

    /* Copies to it are complete. */
    static __device__ void arrived(void)
    {
        wgmma_fence_shared();
    }
};

template <int D> using attention_wgmma_own = attention_wgmma_rows<D, ATTENTION_MMA_OWN>;
template <int D> using attention_wgmma_tile = attention_wgmma_rows<D, WGMMA_ROWS>;

/* The products of a warpgroup's own rows with a tile, as attention_mma_dots has them: s[p][0][j] is
 * of rows 16 p + 8 j .. 16 p + 8 j + 7 of the tile. */
enum { ATTENTION_WGMMA_PARTS = WGMMA_ROWS / ATTENTION_MMA_ROWS };
typedef float attention_wgmma_scores[ATTENTION_WGMMA_PARTS][1][2][4];

/* The blocks of a head read the same other rows, so these should stay in the second cache (50 MB on
 * Hopper, in two halves): the blocks of a group of heads, whose other rows are so many bytes, come
 * before those of the next group. The fake device has small groups, so that its tests have several.
 */
#ifdef __CUDACC__
enum { ATTENTION_WGMMA_GROUP = 16 << 20 };
#else
enum { ATTENTION_WGMMA_GROUP = 48 << 10 };
#endif

struct attention_wgmma_place {
    int batch, head, part;
};

/* Which head, of `heads` in a sequence, and which part of its own rows block number b has. The
 * blocks of a head read `rows` rows of two matrices. In a group part 0 of each head comes first. */
static __device__ inline struct attention_wgmma_place attention_wgmma_place_of(
    const struct attention *a, unsigned b, int64_t heads, int64_t own_rows, int64_t rows)
{
    const unsigned all = (unsigned)(a->batch * heads);
    const unsigned parts = (unsigned)attention_parts(own_rows, ATTENTION_MMA_OWN);
    const int64_t bytes = 2 * rows * a->head_dim * (int64_t)sizeof(uint16_t);
    const unsigned fit =
        bytes < ATTENTION_WGMMA_GROUP ? ATTENTION_WGMMA_GROUP / (unsigned)bytes : 1;
    const unsigned group = fit < all ? fit : all;
    const unsigned first = b / (group * parts) * group;
    const unsigned n = all - first < group ? all - first : group;
    const unsigned in_group = b - first * parts, head = first + in_group % n;

    return { (int)(head / (unsigned)heads), (int)(head % (unsigned)heads), (int)(in_group / n) };
}

/* Block number b's own queries. */
static __device__ inline struct attention_rows attention_wgmma_queries(const struct attention *a,
                                                                       unsigned b)
{
    const struct attention_wgmma_place at =
        attention_wgmma_place_of(a, b, a->heads, a->seq, attention_keys(a));

    return attention_queries_part(a, ATTENTION_MMA_OWN, at.batch, at.head, at.part);
}

/* Block number b's own keys. */
static __device__ inline struct attention_rows attention_wgmma_own_keys(const struct attention *a,
                                                                        unsigned b)
{
    const struct attention_wgmma_place at = attention_wgmma_place_of(
        a, b, a->kv_heads, attention_keys(a), a->heads / a->kv_heads * a->seq);

    return attention_keys_part(a, ATTENTION_MMA_OWN, at.batch, at.head, at.part);
}

/* The number of the warpgroup, the same register in all its threads. */
static __device__ inline int attention_wgmma_group(void)
{
    return __shfl_sync(0xffffffffu, (int)threadIdx.x / WGMMA_THREADS, 0);
}

/* What a thread copies of rows: 16 bytes, chunk number `chunk`, of rows row, row + STEP, ... */
template <int D> struct attention_wgmma_share {
    enum {
        AT_ONCE = 8,
        THREADS = D / AT_ONCE, /* that copy a row */
        STEP = LAUNCH_THREADS / THREADS,
    };
    static_assert(STEP % 8 == 0, "a thread's chunks are at one place in each of its rows");
    const int row = (int)threadIdx.x / THREADS, chunk = (int)threadIdx.x % THREADS;

    /* Where the first of them is, in rows from `first` on of a matrix, and in shared memory. */
    __device__ const uint16_t *from(const void *x, int64_t ld, const struct attention_rows &rows,
                                    int first) const
    {
        return static_cast<const uint16_t *>(x) + (rows.at + first + row) * ld + rows.col +
               chunk * AT_ONCE;
    }

    template <int N> __device__ uint16_t *to(struct attention_wgmma_rows<D, N> *t) const
    {
        return &t->panel[chunk / 8].x[row][wgmma_chunk(row, chunk % 8)];
    }
};

/* Begin to copy rows first, first + 1, ...; 0 outside of the rows. All threads of the block call
 * it. */
template <int D, int N>
static __device__ void attention_tile_copy(struct attention_wgmma_rows<D, N> *t,
                                           const struct attention *, const void *x, int64_t ld,
                                           const struct attention_rows &rows, int first)
{
    enum { STEP = attention_wgmma_share<D>::STEP };
    const attention_wgmma_share<D> mine;
    const uint16_t *from = mine.from(x, ld, rows, first);
    uint16_t *to = mine.to(t);

#pragma unroll
    for (int i = 0; i < N; i += STEP)
        async_copy_16(to + i * WGMMA_COLUMNS, from + i * ld, first + mine.row + i < rows.rows);
}

/* Begin s = the products of 64 own rows, from row `first` of a block's own, with those of a tile.
 * The caller fences and commits. */
template <int D>
static __device__ __forceinline__ void attention_wgmma_dots(float *s,
                                                            const attention_wgmma_own<D> &own,
                                                            int first,
                                                            const attention_wgmma_tile<D> &tile)
{
    enum { STEPS = WGMMA_COLUMNS / WGMMA_DEPTH, BYTES = WGMMA_DEPTH * 2 };
    const uint64_t a = wgmma_descriptor(own.panel[0].x[first]),
                   b = wgmma_descriptor(&tile.panel[0]);

#pragma unroll
    for (int k = 0; k < D / WGMMA_DEPTH; k++) {
        const int panel = k / STEPS, at = k % STEPS * BYTES;

        wgmma_dots(s, wgmma_later(a, panel * (int)sizeof own.panel[0] + at),
                   wgmma_later(b, panel * (int)sizeof tile.panel[0] + at), k > 0);
    }
}

/* Of each of a lane's two own rows, the rows of a tile that it sees or that see it: from `from` to
 * before `end`, numbered as those of the tile, of which n is the first. The others of s become
 * `hidden`: few instructions, because every pass over a head ends, or begins, with such tiles. */
struct attention_wgmma_seen {
    int from[2], end[2];
};

template <int D>
static __device__ __forceinline__ void attention_wgmma_hide(float *s,
                                                            const struct attention_wgmma_seen &seen,
                                                            int n, float hidden)
{
    int first[2];
    unsigned count[2];

#pragma unroll
    for (int h = 0; h < 2; h++) {
        first[h] = n + attention_mma_col(0) - seen.from[h];
        count[h] = (unsigned)(seen.end[h] > seen.from[h] ? seen.end[h] - seen.from[h] : 0);
    }
#pragma unroll
    for (int i = 0; i < WGMMA_COLUMNS / 2; i++)
        s[i] = (unsigned)(first[i % 4 / 2] + i / 4 * 8 + i % 2) < count[i % 4 / 2] ? s[i] : hidden;
}

/* The keys that the lane's queries see. */
static __device__ inline struct attention_wgmma_seen attention_wgmma_keys(
    const struct attention &a, const struct attention_rows &q)
{
    struct attention_wgmma_seen seen;

#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = attention_mma_first<1>(&q) + attention_mma_row(2 * h);

        seen.from[h] = attention_first(&a, row);
        seen.end[h] = row < q.rows ? attention_seen(&a, row) : 0;
    }
    return seen;
}

/* Weights as the next products want them, rounded to bf16. */
struct attention_wgmma_weights {
    uint32_t a[ATTENTION_WGMMA_PARTS][4];
};

static __device__ __forceinline__ void attention_wgmma_pack(struct attention_wgmma_weights *to,
                                                            const float *w)
{
#pragma unroll
    for (int i = 0; i < 4 * ATTENTION_WGMMA_PARTS; i++)
        to->a[i / 4][i % 4] = instruction_bf16x2(w[2 * i], w[2 * i + 1]);
    wgmma_keep_words(to->a[0], 4 * ATTENTION_WGMMA_PARTS);
}

/* Begin sums += weights times the rows of a tile. sums[8 * j ...] as attention_mma_sum has them. */
template <int D>
static __device__ __forceinline__ void attention_wgmma_sum(float *sums,
                                                           const struct attention_wgmma_weights &w,
                                                           const attention_wgmma_tile<D> &tile)
{
    enum { BYTES = WGMMA_DEPTH * WGMMA_COLUMNS * 2, COLUMNS = WGMMA_COLUMNS / 2 };
    const uint64_t b = wgmma_descriptor(&tile.panel[0]);

#pragma unroll
    for (int p = 0; p < ATTENTION_WGMMA_PARTS; p++)
#pragma unroll
        for (int h = 0; h < D / WGMMA_COLUMNS; h++)
            wgmma_sum(sums + h * COLUMNS, w.a[p],
                      wgmma_later(b, h * (int)sizeof tile.panel[0] + p * BYTES));
}

#endif
