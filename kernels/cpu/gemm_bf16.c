/* kernels/cpu/gemm_bf16.c - see kernels/cpu/gemm_bf16.h. */
#include "kernels/cpu/gemm_bf16.h"

#ifdef __x86_64__

#include <stdatomic.h>
#include <stddef.h>

#include "kernels/cpu/panel.h"
#include "kernels/cpu/panel_amx.h"
#include "kernels/cpu/thread.h"
#include "kernels/cpu/thread_buffer.h"
#include "kernels/cpu/unit.h"

/*
 * A block of A (0.4 MiB at most) stays in the second-level cache while a panel of B (128 KiB) goes
 * past it, and the PANEL_ROWS rows of A in use stay in the first-level cache. Sums over k are cut
 * only where k is large, because each cut reads and writes C once more. Measured on Zen 4 (GFLOP/s,
 * 1024 x 2752 x 1024): blocks of 256 along k 200, 512 205 to 220, 1024 216 to 227. On Zen 5 (peak
 * 490 to 510) 512 gives 2 % less, 1536 to 3072 the same; fewer columns and more rows give less.
 * AMX computes so fast that memory limits it: 384, 512 and 768 along k, and 8 to 32 panels of B,
 * differ by less than the noise; 256 rows and columns are 20 % slower.
 */
enum {
    A_WIDTH = 96, /* columns of a panel of A: a multiple of PANEL_ROWS and 2 PANEL_LANES */
    BLOCK_M = 2 * A_WIDTH,
    BLOCK_N = 16 * PANEL_COLUMNS,
    BLOCK_K = 1024,
    AMX_BLOCK_K = 512,
    AMX_ROWS = 2 * PANEL_TILE, /* of A, at a time */
    CACHE_LINE = 64,           /* bytes */
};

/* A product, and which unit computes it. */
struct product {
    struct gemm g;
    bool amx;
};

static int64_t least(int64_t x, int64_t y)
{
    return x < y ? x : y;
}

static int64_t count(int64_t n, int64_t of)
{
    return (n + of - 1) / of;
}

/* k is cut into as few blocks as possible, of about equal length: whole pairs, or whole tiles. */
static int64_t block_k(const struct product *p)
{
    int64_t most = p->amx ? AMX_BLOCK_K : BLOCK_K, unit = p->amx ? 2 * PANEL_TILE : 2;

    return count(count(p->g.k, count(p->g.k, most)), unit) * unit;
}

static const uint16_t *at(const void *x, bool trans, int64_t row, int64_t col, int64_t ld)
{
    return (const uint16_t *)x + (trans ? col * ld + row : row * ld + col);
}

/* An operand that is needed soon. Products keep the core busy and leave memory idle, so a few lines
 * of it are brought into the second-level cache before each tile of C. */
struct fetch {
    const char *row;
    int64_t ld, row_bytes, rows; /* rows that are left */
    int64_t at;                  /* byte of the row */
    int64_t lines;               /* of one tile */
};

/* op(X)[rows][cols], during `tiles` tiles. */
static struct fetch fetch_of(const void *x, bool trans, int64_t rows, int64_t cols, int64_t ld,
                             int64_t tiles)
{
    struct fetch f = { .row = x,
                       .ld = ld * (int64_t)sizeof(uint16_t),
                       .row_bytes = (trans ? rows : cols) * (int64_t)sizeof(uint16_t),
                       .rows = trans ? cols : rows };

    f.lines = (f.rows * (f.row_bytes / CACHE_LINE + 1) + tiles - 1) / tiles;
    return f;
}

static void fetch_some(struct fetch *f)
{
    for (int64_t i = 0; i < f->lines && f->rows > 0; i++) {
        __builtin_prefetch(f->row + f->at, 0, 2);
        f->at += CACHE_LINE;
        if (f->at >= f->row_bytes) {
            f->at = 0;
            f->row += f->ld;
            f->rows--;
        }
    }
}

/* A block of op(A) and one of op(B), and what is known about their product. */
struct part {
    struct gemm g;
    bool amx;
    const uint32_t *a; /* packed, for AMX in tiles; NULL: g.a as it is */
    uint32_t *b;       /* packed by the first part that uses it, a panel right before its use */
    bool is_first;
    struct fetch next_a; /* the next part's A */
};

static void pack_panel_of_b(const struct gemm *g, uint32_t *b, int64_t j)
{
    (g->trans_b ? panel_pack_columns : panel_pack_rows)(b, PANEL_COLUMNS,
                                                        at(g->b, g->trans_b, 0, j, g->ldb), g->ldb,
                                                        g->k, least(PANEL_COLUMNS, g->n - j));
}

/* Rows of A that the unit multiplies at a time. */
static int64_t rows_at_once(const struct part *t)
{
    return t->amx ? AMX_ROWS : PANEL_ROWS;
}

/* C's rows from i on and columns from j on, as many as the unit computes at a time. */
static void multiply_rows(const struct part *t, int64_t i, int64_t j)
{
    const struct gemm *g = &t->g;
    int64_t pairs = panel_pairs(g->k), words = panel_tile_words(g->k, PANEL_TILE);
    struct panel_product p = { .m = least(rows_at_once(t), g->m - i),
                               .n = least(PANEL_COLUMNS, g->n - j),
                               .pairs = pairs,
                               .b = t->b + j * pairs,
                               .c = (float *)g->c + i * g->ldc + j,
                               .ldc = g->ldc,
                               .alpha = g->alpha,
                               .beta = g->beta };

    if (t->amx) {
        p.a = (const uint16_t *)(t->a + i / PANEL_TILE * words);
        p.a_row = 2 * PANEL_TILE, p.a_step = 2;
        panel_amx_product(&(struct panel_amx){
            .product = p, .a_right = 2 * PANEL_TILE * PANEL_TILE, .a_down = 2 * words });
        return;
    }
    if (t->a) {
        p.a = (const uint16_t *)(t->a + i / A_WIDTH * A_WIDTH * pairs + i % A_WIDTH);
        p.a_row = 2, p.a_step = 2 * A_WIDTH;
    } else {
        p.a = at(g->a, false, i, 0, g->lda);
        p.a_row = g->lda, p.a_step = 2;
    }
    panel_product(&p);
}

/* C[m][n] = alpha A B + beta C */
static void multiply(struct part *t)
{
    const struct gemm *g = &t->g;
    int64_t pairs = panel_pairs(g->k), tiles = count(g->m, rows_at_once(t));

    for (int64_t j = 0, next; j < g->n; j = next) {
        struct fetch next_b = { 0 };

        next = j + PANEL_COLUMNS;
        if (t->is_first)
            pack_panel_of_b(g, t->b + j * pairs, j);
        if (t->is_first && next < g->n)
            next_b = fetch_of(at(g->b, g->trans_b, 0, next, g->ldb), g->trans_b, g->k,
                              least(PANEL_COLUMNS, g->n - next), g->ldb, tiles);
        for (int64_t i = 0; i < g->m; i += rows_at_once(t)) {
            fetch_some(&next_b);
            fetch_some(&t->next_a);
            multiply_rows(t, i, j);
        }
    }
}

/* Pack the block of A, unless it is multiplied as it is: pairs lie in its rows. */
static void pack_a(struct part *t, uint32_t *a)
{
    const struct gemm *g = &t->g;

    t->a = a;
    if (t->amx)
        (g->trans_a ? panel_pack_tiles_transposed : panel_pack_tiles)(a, g->a, g->lda, g->k, g->m);
    else if (g->trans_a || g->k % 2)
        (g->trans_a ? panel_pack_rows : panel_pack_columns)(a, A_WIDTH, g->a, g->lda, g->k, g->m);
    else
        t->a = NULL;
}

/* The parts of C that use the block of B which begins at row k0 and column j0. a and b: memory for
 * packed blocks. */
static void block_of_b(const struct product *p, int64_t j0, int64_t k0, uint32_t *a, uint32_t *b)
{
    const struct gemm *g = &p->g;
    struct part t = { .g = *g, .amx = p->amx, .b = b };

    t.g.n = least(BLOCK_N, g->n - j0);
    t.g.k = least(block_k(p), g->k - k0);
    t.g.beta = k0 ? 1 : g->beta;
    t.g.b = at(g->b, g->trans_b, k0, j0, g->ldb);
    for (int64_t i = 0, next; i < g->m; i = next) {
        next = i + BLOCK_M;
        t.is_first = i == 0;
        t.g.m = least(BLOCK_M, g->m - i);
        t.g.c = (float *)g->c + i * g->ldc + j0;
        t.g.a = at(g->a, g->trans_a, i, k0, g->lda);
        t.next_a = (struct fetch){ 0 };
        if (next < g->m)
            t.next_a = fetch_of(at(g->a, g->trans_a, next, k0, g->lda), g->trans_a,
                                least(BLOCK_M, g->m - next), t.g.k, g->lda,
                                count(t.g.m, rows_at_once(&t)) * count(t.g.n, PANEL_COLUMNS));
        pack_a(&t, a);
        multiply(&t);
    }
}

/* Words of the packed blocks of A and of B. */
static int64_t words_a(const struct product *p)
{
    int64_t m = least(BLOCK_M, p->g.m);

    return p->amx ? panel_tile_words(block_k(p), m) : panel_words(block_k(p), m, A_WIDTH);
}

static int64_t words_b(const struct product *p)
{
    return panel_words(block_k(p), least(BLOCK_N, p->g.n), PANEL_COLUMNS);
}

struct shared_product {
    const struct product *p;
    bool by_rows;
    atomic_int failed;
};

/* The rows or columns lo .. hi - 1 of C, by one thread. */
static void product_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    struct shared_product *s = ctx;
    struct product p = *s->p;
    uint32_t *a;

    (void)thread;
    if (s->by_rows) {
        p.g.m = hi - lo;
        p.g.a = at(p.g.a, p.g.trans_a, lo, 0, p.g.lda);
        p.g.c = (float *)p.g.c + lo * p.g.ldc;
    } else {
        p.g.n = hi - lo;
        p.g.b = at(p.g.b, p.g.trans_b, 0, lo, p.g.ldb);
        p.g.c = (float *)p.g.c + lo;
    }
    if (!(a = thread_buffer((words_a(&p) + words_b(&p)) * (int64_t)sizeof *a))) {
        atomic_store(&s->failed, 1);
        return;
    }
    if (p.amx)
        panel_amx_begin();
    for (int64_t j = 0; j < p.g.n; j += BLOCK_N)
        for (int64_t k = 0; k < p.g.k; k += block_k(&p))
            block_of_b(&p, j, k, a, a + words_a(&p));
    if (p.amx)
        panel_amx_end();
}

tp_status gemm_bf16(const struct device_queue *q, const struct gemm *g, struct tp_err *err)
{
    const struct product p = { .g = *g, .amx = unit_usable(q, UNIT_AMX_BF16) };
    struct shared_product s = { .p = &p, .by_rows = g->m >= g->n };
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

#endif
