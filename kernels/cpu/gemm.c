/* kernels/cpu/gemm.c - see kernels/gemm.h. */
#include "kernels/gemm.h"

#include <stdatomic.h>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/gemm_bf16.h"
#include "kernels/cpu/gemm_onednn.h"
#include "kernels/cpu/run.h"
#include "kernels/cpu/thread.h"
#include "kernels/cpu/unit.h"
#include "kernels/cpu/vec.h"

/*
 * Which code multiplies: the only place that chooses. The choice depends on the processor and the
 * operands' type alone, never on a measurement at run time, so that the same run gives the same
 * bits. What was measured on one core, over the shapes of bench_kernels, in GFLOP/s:
 *
 * - f32: oneDNN 2.6 101 to 114, OpenBLAS 102 to 107, an sgemm of our own 101 to 107
 * - f32, Zen 5: oneDNN 2.6 206 to 245, whose peak is 250
 * - bf16, AVX-512 BF16 (Zen 4): gemm_bf16.h 203 to 227, oneDNN 182 to 215
 * - bf16, Zen 5: gemm_bf16.h 440 to 485, whose peak is 490 to 510
 * - bf16, AMX (Xeon with 3700 at its peak): gemm_bf16.h 980 to 1260, oneDNN 700 to 1350
 * - bf16, other processors: oneDNN, which emulates bf16 by AVX-512 or casts operands for sgemm
 */
static tp_status product(const struct device_queue *q, const struct gemm *g, struct tp_err *err)
{
#ifdef __x86_64__
    if (g->type == DTYPE_BF16 && unit_usable(q, UNIT_AVX512_BF16))
        return gemm_bf16(q, g, err);
#endif
    return gemm_onednn(q, g, err);
}

/* C = beta C, C not read when beta is 0. */
static void scale_c(const struct gemm *g)
{
    for (int64_t i = 0; i < g->m; i++)
        for (int64_t j = 0; j < g->n; j++) {
            float *c = (float *)g->c + i * g->ldc + j;
            *c = g->beta == 0 ? 0 : g->beta * *c;
        }
}

static KERNEL_CLONES void add_row(float *restrict c, const float *restrict bias, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        c[i] += bias[i];
}

static void bias_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct gemm *g = ctx;

    (void)thread;
    for (int64_t i = lo; i < hi; i++)
        add_row((float *)g->c + i * g->ldc, g->bias, g->n);
}

static tp_status multiply(const struct device_queue *q, const struct gemm *g, struct tp_err *err)
{
    if (g->type != DTYPE_F32 && g->type != DTYPE_BF16)
        return tp_fail(err, TP_E_INTERNAL, "a product of %s matrices is not f32 or bf16",
                       dtype_name(g->type));
    if (g->c_type != DTYPE_F32 || g->epilogue != GEMM_EPILOGUE_NONE)
        return tp_fail(err, TP_E_INTERNAL, "the CPU's products are f32, not %s",
                       dtype_name(g->c_type));
    if (g->k == 0 || g->alpha == 0) {
        scale_c(g);
        return TP_OK;
    }
    if (g->m == 0 || g->n == 0)
        return TP_OK;
    return product(q, g, err);
}

tp_status gemm_one(const struct device_queue *q, const struct gemm *g, struct tp_err *err)
{
    struct gemm whole = *g;
    tp_status st = multiply(q, g, err);

    if (st == TP_OK && g->bias)
        kernels_for(q, g->m, kernels_grain(g->n * 8), bias_range, &whole);
    return st;
}

/* ---- several products ---- */

struct gemm_work {
    const struct device_queue *queue;
    const struct gemm *g;
    struct tp_err *err;
    atomic_int failed; /* the first failure's message is kept */
};

static void batch_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    struct gemm_work *w = ctx;

    (void)thread;
    for (int64_t i = lo; i < hi; i++) {
        struct gemm one = gemm_product(w->g, i);
        struct tp_err err;

        if (gemm_one(w->queue, &one, &err) && !atomic_exchange(&w->failed, 1))
            *w->err = err;
    }
}

tp_status cpu_run_gemm(struct device_queue *q, const struct gemm *g, struct tp_err *err)
{
    struct gemm_work w = { .queue = q, .g = g, .err = err };
    tp_status st = TP_OK;

    if (!g->batch.count)
        return gemm_one(q, g, err);
    if (g->batch.together) {
        for (int64_t i = 0; i < g->batch.count && st == TP_OK; i++) {
            struct gemm one = gemm_product(g, i);

            st = gemm_one(q, &one, err);
        }
        return st;
    }
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
            float *c = (float *)g->c + i * g->ldc + j;
            double sum = 0;
            for (int64_t l = 0; l < g->k; l++)
                sum += (double)element(g, g->a, g->trans_a ? l * g->lda + i : i * g->lda + l) *
                       (double)element(g, g->b, g->trans_b ? j * g->ldb + l : l * g->ldb + j);
            sum *= (double)g->alpha;
            if (g->beta != 0)
                sum += (double)g->beta * (double)*c;
            *c = (float)(g->bias ? sum + (double)g->bias[j] : sum);
        }
}
