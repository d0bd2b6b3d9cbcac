/* kernels/cpu/gemm_bf16.c - see kernels/cpu/gemm_bf16.h. */
#include "kernels/cpu/gemm_bf16.h"

#include <stdatomic.h>
#include <stddef.h>

#include "kernels/cpu/panel.h"
#include "kernels/cpu/thread.h"
#include "kernels/cpu/thread_buffer.h"

/*
 * A block of A (0.4 MiB at most) stays in the second-level cache while a panel of B (128 KiB) goes
 * past it, and the PANEL_ROWS rows of A in use stay in the first-level cache. Sums over k are cut
 * only where k is large, because each cut reads and writes C once more. Measured on Zen 4 (GFLOP/s,
 * 1024 x 2752 x 1024): blocks of 256 along k 200, 512 205 to 220, 1024 216 to 227.
 */
enum {
    A_WIDTH = 48, /* columns of a panel of A: a multiple of PANEL_ROWS and PANEL_LANES */
    BLOCK_M = 4 * A_WIDTH,
    BLOCK_N = 16 * PANEL_COLUMNS,
    BLOCK_K = 1024,
};

static int64_t least(int64_t x, int64_t y)
{
    return x < y ? x : y;
}

/* k is cut into as few blocks of at most BLOCK_K as possible, of even and about equal length. */
static int64_t block_k(int64_t k)
{
    int64_t n = (k + BLOCK_K - 1) / BLOCK_K;

    return ((k + n - 1) / n + 1) / 2 * 2;
}

static const uint16_t *at(const void *x, bool trans, int64_t row, int64_t col, int64_t ld)
{
    return (const uint16_t *)x + (trans ? col * ld + row : row * ld + col);
}

/* Multiply a packed block of A with one of B: C[m][n] = alpha A B + beta C. */
static void multiply(const struct gemm *g, const uint32_t *a, const uint32_t *b)
{
    int64_t pairs = panel_pairs(g->k);
    struct panel_product p = { .pairs = pairs,
                               .a_row = a ? 2 : g->lda,
                               .a_step = a ? 2 * A_WIDTH : 2,
                               .ldc = g->ldc,
                               .alpha = g->alpha,
                               .beta = g->beta };

    for (int64_t j = 0; j < g->n; j += PANEL_COLUMNS) {
        p.n = least(PANEL_COLUMNS, g->n - j);
        p.b = b + j * pairs;
        for (int64_t i = 0; i < g->m; i += A_WIDTH) {
            p.m = least(A_WIDTH, g->m - i);
            p.a = a ? (const uint16_t *)(a + i * pairs) : at(g->a, false, i, 0, g->lda);
            p.c = g->c + i * g->ldc + j;
            panel_product_rows(&p);
        }
    }
}

/* The parts of C that use the block of B which begins at row k0 and column j0. */
static void block_of_b(const struct gemm *g, int64_t j0, int64_t k0, uint32_t *a, uint32_t *b)
{
    struct gemm part = *g;

    part.n = least(BLOCK_N, g->n - j0);
    part.k = least(block_k(g->k), g->k - k0);
    part.beta = k0 ? 1 : g->beta;
    (g->trans_b ? panel_pack_columns : panel_pack_rows)(
        b, PANEL_COLUMNS, at(g->b, g->trans_b, k0, j0, g->ldb), g->ldb, part.k, part.n);
    for (int64_t i = 0; i < g->m; i += BLOCK_M) {
        part.m = least(BLOCK_M, g->m - i);
        part.c = g->c + i * g->ldc + j0;
        part.a = at(g->a, g->trans_a, i, k0, g->lda);
        if (part.k % 2 == 0 && !g->trans_a) { /* pairs lie in its rows */
            multiply(&part, NULL, b);
            continue;
        }
        (g->trans_a ? panel_pack_rows : panel_pack_columns)(a, A_WIDTH, part.a, g->lda, part.k,
                                                            part.m);
        multiply(&part, a, b);
    }
}

/* Words of the packed blocks of A and of B. */
static int64_t words_a(const struct gemm *g)
{
    return panel_words(block_k(g->k), least(BLOCK_M, g->m), A_WIDTH);
}

static int64_t words_b(const struct gemm *g)
{
    return panel_words(block_k(g->k), least(BLOCK_N, g->n), PANEL_COLUMNS);
}

struct shared_product {
    const struct gemm *g;
    bool by_rows;
    atomic_int failed;
};

/* The rows or columns lo .. hi - 1 of C, by one thread. */
static void product_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    struct shared_product *s = ctx;
    struct gemm g = *s->g;
    uint32_t *a;

    (void)thread;
    if (s->by_rows) {
        g.m = hi - lo;
        g.a = at(g.a, g.trans_a, lo, 0, g.lda);
        g.c += lo * g.ldc;
    } else {
        g.n = hi - lo;
        g.b = at(g.b, g.trans_b, 0, lo, g.ldb);
        g.c += lo;
    }
    if (!(a = thread_buffer((words_a(&g) + words_b(&g)) * (int64_t)sizeof *a))) {
        atomic_store(&s->failed, 1);
        return;
    }
    for (int64_t j = 0; j < g.n; j += BLOCK_N)
        for (int64_t k = 0; k < g.k; k += block_k(g.k))
            block_of_b(&g, j, k, a, a + words_a(&g));
}

tp_status gemm_bf16(const struct device_queue *q, const struct gemm *g, struct tp_err *err)
{
    struct shared_product s = { .g = g, .by_rows = g->m >= g->n };
    /* as with kernels_grain: too small a product is not worth waking a thread */
    const int64_t worth_flops = 1 << 20;
    bool small = 2 * g->m * g->n * g->k < worth_flops;

    if (s.by_rows)
        kernels_for(q, g->m, small ? g->m : A_WIDTH, product_range, &s);
    else
        kernels_for(q, g->n, small ? g->n : PANEL_COLUMNS, product_range, &s);
    if (atomic_load(&s.failed))
        return tp_fail(err, TP_E_NOMEM, "out of memory for the packed blocks of a bf16 product");
    return TP_OK;
}
