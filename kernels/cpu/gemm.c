/* kernels/cpu/gemm.c - see kernels/gemm.h. */
#include "kernels/gemm.h"

#include <dnnl.h>
#include <omp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cast.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/run.h"
#include "kernels/cpu/thread.h"
#include "kernels/cpu/vec.h"

/*
 * f32 goes to dnnl_sgemm, which needs no preparation. oneDNN 2.6 has bf16 as matmul primitives
 * only, each generated for one shape, so every thread keeps the few it uses. On a processor that
 * oneDNN has no bf16 kernel for (it would take a reference loop) operands are cast to f32 first.
 */

/* What a primitive is made for; compared as bytes, so it is zeroed first and has no padding. */
struct gemm_key {
    int64_t m, n, k, lda, ldb, ldc;
    uint32_t alpha, beta; /* bits of the floats */
    int32_t trans_a, trans_b, threads, unused;
};

struct gemm_entry {
    struct gemm_key key;
    dnnl_primitive_t primitive;
    dnnl_memory_t a, b, c;
    bool refused; /* oneDNN has no fast kernel for this: cast */
};

enum { CACHE_BITS = 7, CACHE_ENTRIES = 1 << CACHE_BITS };

/* The primitives of one thread; where two have the same place, the later one is kept. */
struct gemm_cache {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    struct gemm_entry entry[CACHE_ENTRIES];
    float *cast; /* [n_cast] operands of a product that oneDNN cannot do in bf16 */
    int64_t n_cast;
};

/* The cache belongs to a thread and is freed when the thread ends: OpenMP's threads are started and
 * ended outside of this program's control, so a key is the only way to it. */
static pthread_key_t cache_key;
static pthread_once_t cache_once = PTHREAD_ONCE_INIT;
static bool cache_has_key; /* written under cache_once alone */

static void entry_clear(struct gemm_entry *e)
{
    dnnl_memory_destroy(e->a);
    dnnl_memory_destroy(e->b);
    dnnl_memory_destroy(e->c);
    dnnl_primitive_destroy(e->primitive);
    memset(e, 0, sizeof *e);
}

static void cache_free(void *p)
{
    struct gemm_cache *cache = p;

    for (int i = 0; i < CACHE_ENTRIES; i++)
        entry_clear(&cache->entry[i]);
    dnnl_stream_destroy(cache->stream);
    dnnl_engine_destroy(cache->engine);
    free(cache->cast);
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

/* Row-major rows x cols with ld between rows, as stored, seen transposed when trans. */
static dnnl_status_t matrix_desc(dnnl_memory_desc_t *md, bool trans, int64_t rows, int64_t cols,
                                 int64_t ld, dnnl_data_type_t type)
{
    dnnl_dims_t dims = { rows, cols };
    dnnl_dims_t strides = { trans ? 1 : ld, trans ? ld : 1 };

    return dnnl_memory_desc_init_by_strides(md, 2, dims, type, strides);
}

/* alpha and beta in oneDNN's terms: a scale of the product and a sum after it. */
static dnnl_status_t attr_make(dnnl_primitive_attr_t *attr, float alpha, float beta)
{
    dnnl_post_ops_t ops = NULL;
    dnnl_status_t s = dnnl_primitive_attr_create(attr);

    if (s == dnnl_success && alpha != 1.0f)
        s = dnnl_primitive_attr_set_output_scales(*attr, 1, 0, &alpha);
    if (s == dnnl_success && beta != 0.0f) {
        if ((s = dnnl_post_ops_create(&ops)) == dnnl_success)
            s = dnnl_post_ops_append_sum(ops, beta);
        if (s == dnnl_success)
            s = dnnl_primitive_attr_set_post_ops(*attr, ops);
        dnnl_post_ops_destroy(ops);
    }
    return s;
}

static bool is_reference(const_dnnl_primitive_desc_t pd)
{
    const char *name = NULL;

    return dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &name) != dnnl_success ||
           strncmp(name, "ref", 3) == 0;
}

/* Fill e->primitive and memories. Anything but success: not available. */
static dnnl_status_t entry_make(struct gemm_entry *e, const struct gemm_key *key,
                                dnnl_engine_t engine)
{
    dnnl_memory_desc_t a, b, c;
    dnnl_matmul_desc_t desc;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t s;

    e->key = *key;
    if ((s = matrix_desc(&a, key->trans_a, key->m, key->k, key->lda, dnnl_bf16)) ||
        (s = matrix_desc(&b, key->trans_b, key->k, key->n, key->ldb, dnnl_bf16)) ||
        (s = matrix_desc(&c, false, key->m, key->n, key->ldc, dnnl_f32)) ||
        (s = dnnl_matmul_desc_init(&desc, &a, &b, NULL, &c)) ||
        (s = attr_make(&attr, vec_float(key->alpha), vec_float(key->beta))) ||
        (s = dnnl_primitive_desc_create(&pd, &desc, attr, engine, NULL)))
        goto done;
    if (is_reference(pd)) {
        s = dnnl_unimplemented;
        goto done;
    }
    if ((s = dnnl_primitive_create(&e->primitive, pd)) ||
        (s = dnnl_memory_create(&e->a, &a, engine, DNNL_MEMORY_NONE)) ||
        (s = dnnl_memory_create(&e->b, &b, engine, DNNL_MEMORY_NONE)) ||
        (s = dnnl_memory_create(&e->c, &c, engine, DNNL_MEMORY_NONE)))
        goto done;
done:
    dnnl_primitive_desc_destroy(pd);
    dnnl_primitive_attr_destroy(attr);
    return s;
}

static struct gemm_entry *cache_entry(struct gemm_cache *cache, const struct gemm *g)
{
    struct gemm_key key;
    uint64_t hash = 0;
    struct gemm_entry *e;

    memset(&key, 0, sizeof key);
    key.m = g->m, key.n = g->n, key.k = g->k;
    key.lda = g->lda, key.ldb = g->ldb, key.ldc = g->ldc;
    key.alpha = vec_bits(g->alpha), key.beta = vec_bits(g->beta);
    key.trans_a = g->trans_a, key.trans_b = g->trans_b;
    key.threads = omp_in_parallel() ? 1 : omp_get_max_threads();
    for (size_t i = 0; i < sizeof key / 8; i++) {
        uint64_t word;
        memcpy(&word, (const char *)&key + 8 * i, 8);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
    }
    e = &cache->entry[hash >> (64 - CACHE_BITS)];
    if ((!e->primitive && !e->refused) || memcmp(&e->key, &key, sizeof key) != 0) {
        entry_clear(e);
        if (entry_make(e, &key, cache->engine) != dnnl_success) {
            entry_clear(e);
            e->key = key;
            e->refused = true;
        }
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

/* Elements from the first to past the last of a stored matrix. */
static int64_t extent(bool trans, int64_t rows, int64_t cols, int64_t ld)
{
    return trans ? (cols - 1) * ld + rows : (rows - 1) * ld + cols;
}

/* Room for n floats, kept for the next product. */
static tp_status need_cast(struct gemm_cache *cache, int64_t n, struct tp_err *err)
{
    if (n <= cache->n_cast)
        return TP_OK;
    free(cache->cast);
    cache->n_cast = 0;
    if (!(cache->cast = malloc((size_t)n * sizeof *cache->cast)))
        return tp_fail(err, TP_E_NOMEM, "out of memory for %lld elements of a bf16 product",
                       (long long)n);
    cache->n_cast = n;
    return TP_OK;
}

static tp_status gemm_by_cast(const struct gemm *g, struct gemm_cache *cache, struct tp_err *err)
{
    int64_t n_a = extent(g->trans_a, g->m, g->k, g->lda);
    int64_t n_b = extent(g->trans_b, g->k, g->n, g->ldb);
    tp_status st = need_cast(cache, n_a + n_b, err);

    if (st)
        return st;
    cast(cache->cast, DTYPE_F32, g->a, DTYPE_BF16, n_a);
    cast(cache->cast + n_a, DTYPE_F32, g->b, DTYPE_BF16, n_b);
    return sgemm(g, cache->cast, cache->cast + n_a, err);
}

static tp_status gemm_bf16(const struct gemm *g, struct tp_err *err)
{
    struct gemm_cache *cache = cache_get(err);
    struct gemm_entry *e;
    dnnl_status_t s;

    if (!cache)
        return err->status;
    e = cache_entry(cache, g);
    if (e->refused)
        return gemm_by_cast(g, cache, err);
    /* oneDNN takes inputs through the same type as outputs; it does not write them. */
    if ((s = dnnl_memory_set_data_handle(e->a, (void *)(uintptr_t)g->a)) == dnnl_success &&
        (s = dnnl_memory_set_data_handle(e->b, (void *)(uintptr_t)g->b)) == dnnl_success &&
        (s = dnnl_memory_set_data_handle(e->c, g->c)) == dnnl_success) {
        dnnl_exec_arg_t args[] = { { DNNL_ARG_SRC, e->a },
                                   { DNNL_ARG_WEIGHTS, e->b },
                                   { DNNL_ARG_DST, e->c } };
        s = dnnl_primitive_execute(e->primitive, cache->stream, 3, args);
    }
    if (s != dnnl_success)
        return tp_fail(err, TP_E_INTERNAL,
                       "oneDNN failed at a bf16 product of %lld x %lld x %lld (status %d)",
                       (long long)g->m, (long long)g->n, (long long)g->k, (int)s);
    return TP_OK;
}

/* C = beta C, C not read when beta is 0. */
static void scale_c(const struct gemm *g)
{
    for (int64_t i = 0; i < g->m; i++)
        for (int64_t j = 0; j < g->n; j++) {
            float *c = &g->c[i * g->ldc + j];
            *c = g->beta == 0 ? 0 : g->beta * *c;
        }
}

tp_status gemm_one(const struct device_queue *q, const struct gemm *g, struct tp_err *err)
{
    if (g->type != DTYPE_F32 && g->type != DTYPE_BF16)
        return tp_fail(err, TP_E_INTERNAL, "a product of %s matrices is not f32 or bf16",
                       dtype_name(g->type));
    if (g->k == 0 || g->alpha == 0) {
        scale_c(g);
        return TP_OK;
    }
    if (g->m == 0 || g->n == 0)
        return TP_OK;
    /* A thread that is new to OpenMP would use every core. */
    if (!omp_in_parallel() && omp_get_max_threads() != q->device->threads)
        omp_set_num_threads(q->device->threads);
    return g->type == DTYPE_F32 ? sgemm(g, g->a, g->b, err) : gemm_bf16(g, err);
}

/* ---- several products ---- */

struct gemm_work {
    const struct device_queue *queue;
    const struct gemm *g;
    struct tp_err *err;
    atomic_int failed; /* the first failure's message is kept */
};

/* Shorten product i along the batch's axis, and the rows that run along it. */
static void shorten(struct gemm *g, int64_t i)
{
    enum gemm_axis axis = g->batch.axis;
    int64_t *size = axis == GEMM_M ? &g->m : axis == GEMM_N ? &g->n : &g->k;
    int64_t left = g->batch.total - i * *size;

    if (axis == GEMM_NO_AXIS || left >= *size)
        return;
    *size = left > 0 ? left : 0;
    if (axis == (g->trans_a ? GEMM_M : GEMM_K))
        g->lda = *size;
    if (axis == (g->trans_b ? GEMM_K : GEMM_N))
        g->ldb = *size;
    if (axis == GEMM_N)
        g->ldc = *size;
}

static void batch_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    struct gemm_work *w = ctx;

    (void)thread;
    for (int64_t i = lo; i < hi; i++) {
        struct gemm one = *w->g;
        struct tp_err err;

        shorten(&one, i);
        one.a = (const char *)one.a + i * one.batch.step_a * dtype_bytes(one.type);
        one.b = (const char *)one.b + i * one.batch.step_b * dtype_bytes(one.type);
        one.c += i * one.batch.step_c;
        if (gemm_one(w->queue, &one, &err) && !atomic_exchange(&w->failed, 1))
            *w->err = err;
    }
}

tp_status cpu_run_gemm(struct device_queue *q, const struct gemm *g, struct tp_err *err)
{
    struct gemm_work w = { .queue = q, .g = g, .err = err };

    if (!g->batch.count)
        return gemm_one(q, g, err);
    kernels_each(q, g->batch.count, batch_range, &w);
    return atomic_load(&w.failed) ? err->status : TP_OK;
}

/* ---- the reference ---- */

static float element(const struct gemm *g, const void *p, int64_t i)
{
    return g->type == DTYPE_F32 ? ((const float *)p)[i] : vec_from_bf16(((const uint16_t *)p)[i]);
}

void gemm_reference(const struct gemm *g)
{
    for (int64_t i = 0; i < g->m; i++)
        for (int64_t j = 0; j < g->n; j++) {
            float *c = &g->c[i * g->ldc + j];
            double sum = 0;
            for (int64_t l = 0; l < g->k; l++)
                sum += (double)element(g, g->a, g->trans_a ? l * g->lda + i : i * g->lda + l) *
                       (double)element(g, g->b, g->trans_b ? j * g->ldb + l : l * g->ldb + j);
            sum *= (double)g->alpha;
            *c = (float)(g->beta == 0 ? sum : sum + (double)g->beta * (double)*c);
        }
}
