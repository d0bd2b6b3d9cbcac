/* kernels/cpu/gemm_onednn.c - see kernels/cpu/gemm_onednn.h. */
#include "kernels/cpu/gemm_onednn.h"

#include <dnnl.h>
#include <omp.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cast.h"
#include "kernels/cpu/onednn_matmul.h"
#include "kernels/cpu/thread.h"
#include "kernels/cpu/thread_buffer.h"
#include "kernels/cpu/vec.h"

/*
 * f32 goes to dnnl_sgemm, which needs no preparation. oneDNN 2.6 has bf16 as matmul primitives
 * only, each generated for one shape, so every thread keeps the few it uses. On a processor that
 * oneDNN has no bf16 kernel for (it would take a reference loop) operands are cast to f32 first.
 *
 * Primitives are made without a scale and without a sum, because with either of them oneDNN 2.6
 * runs a scalar loop over C (a training step took 1.3 times as long). Both are loops here.
 */

/* What a primitive is made for; compared as bytes, so it is zeroed first and has no padding. */
struct gemm_key {
    struct onednn_matmul_shape shape;
    int32_t threads, unused;
};

struct gemm_entry {
    struct gemm_key key;
    struct onednn_matmul matmul;
    bool refused; /* oneDNN has no fast kernel for this: cast */
};

enum { CACHE_BITS = 7, CACHE_ENTRIES = 1 << CACHE_BITS };

/* The primitives of one thread; where two have the same place, the later one is kept. */
struct gemm_cache {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    struct gemm_entry entry[CACHE_ENTRIES];
};

/* The cache belongs to a thread and is freed when the thread ends: OpenMP's threads are started and
 * ended outside of this program's control, so a key is the only way to it. */
static pthread_key_t cache_key;
static pthread_once_t cache_once = PTHREAD_ONCE_INIT;
static bool cache_has_key; /* written under cache_once alone */

static void entry_clear(struct gemm_entry *e)
{
    onednn_matmul_clear(&e->matmul);
    memset(e, 0, sizeof *e);
}

static void cache_free(void *p)
{
    struct gemm_cache *cache = p;

    for (int i = 0; i < CACHE_ENTRIES; i++)
        entry_clear(&cache->entry[i]);
    dnnl_stream_destroy(cache->stream);
    dnnl_engine_destroy(cache->engine);
    free(cache);
}

static void cache_key_make(void)
{
    cache_has_key = pthread_key_create(&cache_key, cache_free) == 0;
}

/* The calling thread's cache, made at its first use. NULL: err is filled. */
static struct gemm_cache *cache_get(struct tp_err *err)
{
    struct gemm_cache *cache;
    dnnl_status_t s;

    pthread_once(&cache_once, cache_key_make);
    if (!cache_has_key) {
        tp_fail(err, TP_E_INTERNAL, "no thread-specific key is left for the bf16 products");
        return NULL;
    }
    cache = pthread_getspecific(cache_key);
    if (cache)
        return cache;
    if (!(cache = calloc(1, sizeof *cache))) {
        tp_fail(err, TP_E_NOMEM, "out of memory for the table of bf16 products");
        return NULL;
    }
    s = dnnl_engine_create(&cache->engine, dnnl_cpu, 0);
    if (s == dnnl_success)
        s = dnnl_stream_create(&cache->stream, cache->engine, dnnl_stream_default_flags);
    if (s != dnnl_success || pthread_setspecific(cache_key, cache)) {
        cache_free(cache);
        tp_fail(err, TP_E_INTERNAL, "oneDNN gave no engine (status %d)", (int)s);
        return NULL;
    }
    return cache;
}

static struct gemm_entry *cache_entry(struct gemm_cache *cache, const struct gemm *g)
{
    struct gemm_key key;
    uint64_t hash = 0;
    struct gemm_entry *e;

    memset(&key, 0, sizeof key);
    key.shape = (struct onednn_matmul_shape){ g->m,   g->n,   g->k,       g->lda,
                                              g->ldb, g->ldc, g->trans_a, g->trans_b };
    key.threads = omp_in_parallel() ? 1 : omp_get_max_threads();
    for (size_t i = 0; i < sizeof key / 8; i++) {
        uint64_t word;
        memcpy(&word, (const char *)&key + 8 * i, 8);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
    }
    e = &cache->entry[hash >> (64 - CACHE_BITS)];
    if ((!e->matmul.primitive && !e->refused) || memcmp(&e->key, &key, sizeof key) != 0) {
        entry_clear(e);
        e->key = key;
        e->refused = onednn_matmul_make(&e->matmul, &key.shape, cache->engine) != dnnl_success;
        if (e->refused)
            onednn_matmul_clear(&e->matmul);
    }
    return e;
}

static tp_status sgemm(const struct gemm *g, const float *a, const float *b, struct tp_err *err)
{
    dnnl_status_t s = dnnl_sgemm(g->trans_a ? 'T' : 'N', g->trans_b ? 'T' : 'N', g->m, g->n, g->k,
                                 g->alpha, a, g->lda, b, g->ldb, g->beta, g->c, g->ldc);

    if (s != dnnl_success)
        return tp_fail(err, TP_E_INTERNAL,
                       "oneDNN refused a product of %lld x %lld x %lld (status %d)",
                       (long long)g->m, (long long)g->n, (long long)g->k, (int)s);
    return TP_OK;
}

/* ---- by cast ---- */

/* Operands are cast block by block, because whole ones can be as large as all logits in f32, which
 * nobody has counted. These blocks are large enough for many threads: 16 MiB of both operands. */
enum { CAST_ROWS = 2048, CAST_K = 1024 };

static int64_t least(int64_t x, int64_t y)
{
    return x < y ? x : y;
}

/* A block of an operand: `rows` rows as they are stored, `ld` apart, which are cast to
 * y[rows][cols].
 */
struct cast_block {
    float *y;
    const uint16_t *x;
    int64_t rows, cols, ld;
};

static void cast_block_rows(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct cast_block *b = ctx;

    (void)thread;
    for (int64_t i = lo; i < hi; i++)
        cast(b->y + i * b->cols, DTYPE_F32, b->x + i * b->ld, DTYPE_BF16, b->cols);
}

/* Rows row .. row + rows - 1 and columns col .. col + cols - 1 of op(x). */
static void cast_block(const struct device_queue *q, float *y, const void *x, int64_t ld,
                       bool trans, const int64_t row[2], const int64_t col[2])
{
    const int64_t *down = trans ? col : row, *along = trans ? row : col;
    struct cast_block b = { .y = y,
                            .x = (const uint16_t *)x + down[0] * ld + along[0],
                            .rows = down[1],
                            .cols = along[1],
                            .ld = ld };

    kernels_for(q, b.rows, kernels_grain(6 * b.cols), cast_block_rows, &b);
}

/* The rows of C for the block of B in b, whose rows are k[0] .. and whose columns are n[0] .. */
static tp_status multiply_by_cast(const struct device_queue *q, const struct gemm *g, float *a,
                                  const float *b, const int64_t k[2], const int64_t n[2],
                                  struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int64_t at = 0; at < g->m && !st; at += CAST_ROWS) {
        const int64_t m[2] = { at, least(g->m - at, CAST_ROWS) };
        struct gemm block = *g;

        cast_block(q, a, g->a, g->lda, g->trans_a, m, k);
        block.m = m[1], block.n = n[1], block.k = k[1];
        block.lda = g->trans_a ? m[1] : k[1];
        block.ldb = g->trans_b ? k[1] : n[1];
        block.c = (float *)g->c + m[0] * g->ldc + n[0];
        block.beta = k[0] ? 1 : g->beta;
        st = sgemm(&block, a, b, err);
    }
    return st;
}

static tp_status gemm_by_cast(const struct device_queue *q, const struct gemm *g,
                              struct tp_err *err)
{
    int64_t depth = least(g->k, CAST_K), n_a = least(g->m, CAST_ROWS) * depth;
    int64_t n_b = least(g->n, CAST_ROWS) * depth;
    float *a = thread_buffer((n_a + n_b) * (int64_t)sizeof *a), *b = a ? a + n_a : NULL;
    tp_status st = TP_OK;

    if (!a)
        return tp_fail(err, TP_E_NOMEM, "out of memory for %lld elements of a bf16 product",
                       (long long)(n_a + n_b));
    for (int64_t j = 0; j < g->n && !st; j += CAST_ROWS)
        for (int64_t l = 0; l < g->k && !st; l += CAST_K) {
            const int64_t n[2] = { j, least(g->n - j, CAST_ROWS) };
            const int64_t k[2] = { l, least(g->k - l, CAST_K) };

            cast_block(q, b, g->b, g->ldb, g->trans_b, k, n);
            st = multiply_by_cast(q, g, a, b, k, n, err);
        }
    return st;
}

/* ---- by a primitive ---- */

/* C[m][ldc] = the product alone. */
static tp_status execute(const struct gemm *g, const struct gemm_entry *e, float *c,
                         dnnl_stream_t stream, struct tp_err *err)
{
    dnnl_status_t s;

    /* oneDNN takes inputs through the same type as outputs; it does not write them. */
    if ((s = dnnl_memory_set_data_handle(e->matmul.a, (void *)(uintptr_t)g->a)) == dnnl_success &&
        (s = dnnl_memory_set_data_handle(e->matmul.b, (void *)(uintptr_t)g->b)) == dnnl_success &&
        (s = dnnl_memory_set_data_handle(e->matmul.c, c)) == dnnl_success) {
        dnnl_exec_arg_t args[] = { { DNNL_ARG_SRC, e->matmul.a },
                                   { DNNL_ARG_WEIGHTS, e->matmul.b },
                                   { DNNL_ARG_DST, e->matmul.c } };
        s = dnnl_primitive_execute(e->matmul.primitive, stream, 3, args);
    }
    if (s != dnnl_success)
        return tp_fail(err, TP_E_INTERNAL,
                       "oneDNN failed at a bf16 product of %lld x %lld x %lld (status %d)",
                       (long long)g->m, (long long)g->n, (long long)g->k, (int)s);
    return TP_OK;
}

/* C = alpha x + beta C */
struct scaled_sum {
    const struct gemm *g;
    const float *x; /* [m][ldc]; C itself where beta is 0 */
};

static KERNEL_CLONES void scale_row(float *c, const float *x, float alpha, float beta, int64_t n)
{
    if (beta == 0)
#pragma omp simd
        for (int64_t j = 0; j < n; j++)
            c[j] = alpha * x[j];
    else
#pragma omp simd
        for (int64_t j = 0; j < n; j++)
            c[j] = alpha * x[j] + beta * c[j];
}

static void scale_rows(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct scaled_sum *s = ctx;
    const struct gemm *g = s->g;

    (void)thread;
    for (int64_t i = lo; i < hi; i++)
        scale_row((float *)g->c + i * g->ldc, s->x + i * g->ldc, g->alpha, g->beta, g->n);
}

static tp_status onednn_bf16(const struct device_queue *q, const struct gemm *g, struct tp_err *err)
{
    struct gemm_cache *cache = cache_get(err);
    struct gemm_entry *e;
    float *c = g->c;
    tp_status st;

    if (!cache)
        return err->status;
    e = cache_entry(cache, g);
    if (e->refused)
        return gemm_by_cast(q, g, err);
    if (g->beta != 0 && !(c = thread_buffer(g->m * g->ldc * (int64_t)sizeof *c)))
        return tp_fail(err, TP_E_NOMEM, "out of memory for a product of %lld x %lld floats",
                       (long long)g->m, (long long)g->ldc);
    if ((st = execute(g, e, c, cache->stream, err)) != TP_OK)
        return st;
    if (g->alpha != 1 || g->beta != 0)
        kernels_for(q, g->m, kernels_grain(12 * g->n), scale_rows, &(struct scaled_sum){ g, c });
    return TP_OK;
}

tp_status gemm_onednn(const struct device_queue *q, const struct gemm *g, struct tp_err *err)
{
    /* A thread that is new to OpenMP would use every core. */
    if (!omp_in_parallel() && omp_get_max_threads() != q->device->threads)
        omp_set_num_threads(q->device->threads);
    return g->type == DTYPE_F32 ? sgemm(g, g->a, g->b, err) : onednn_bf16(q, g, err);
}
