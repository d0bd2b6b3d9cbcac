/* kernels/cpu/adamw.c - see kernels/adamw.h. */
#include "kernels/adamw.h"

#include <math.h>

#include "kernels/cpu/thread.h"
#include "kernels/cpu/vec.h"

/* What an element needs, from the header's formula: lr (m / c1) / (sqrt(v / c2) + eps) is
 * step m / (sqrt(v) root + eps). */
struct factors {
    float decay, beta1, rest1, beta2, rest2, step, root, eps, grad_scale;
};

struct adamw_work {
    float *p, *m, *v;
    const float *grad;
    uint16_t *p_bf16;
    struct factors f;
};

static KERNEL_CLONES void step(float *restrict p, float *restrict m, float *restrict v,
                               const float *restrict grad, int64_t n, const struct factors *f)
{
    const struct factors k = *f;

    for (int64_t i = 0; i < n; i++) {
        float g = grad[i] * k.grad_scale;
        float mi = k.beta1 * m[i] + k.rest1 * g;
        float vi = k.beta2 * v[i] + k.rest2 * (g * g);

        m[i] = mi;
        v[i] = vi;
        p[i] = p[i] * k.decay - k.step * mi / (sqrtf(vi) * k.root + k.eps);
    }
}

static KERNEL_CLONES void round_bf16(uint16_t *restrict y, const float *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = vec_to_bf16(x[i]);
}

static void adamw_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct adamw_work *w = ctx;
    enum { CHUNK = 4096 }; /* so that p is in cache when it is rounded */

    (void)thread;
    for (int64_t i = lo; i < hi; i += CHUNK) {
        int64_t n = hi - i < CHUNK ? hi - i : CHUNK;
        step(w->p + i, w->m + i, w->v + i, w->grad + i, n, &w->f);
        if (w->p_bf16)
            round_bf16(w->p_bf16 + i, w->p + i, n);
    }
}

void adamw_step(float *p, float *m, float *v, const float *grad, uint16_t *p_bf16, int64_t n,
                const struct adamw *h)
{
    struct adamw_work w = { p,
                            m,
                            v,
                            grad,
                            p_bf16,
                            { .decay = (float)(1.0 - h->lr * h->weight_decay),
                              .beta1 = (float)h->beta1,
                              .rest1 = (float)(1.0 - h->beta1),
                              .beta2 = (float)h->beta2,
                              .rest2 = (float)(1.0 - h->beta2),
                              .step = (float)(h->lr / h->correction1),
                              .root = (float)(1.0 / sqrt(h->correction2)),
                              .eps = (float)h->eps,
                              .grad_scale = (float)h->grad_scale } };

    kernels_for(n, kernels_grain(28), adamw_range, &w);
}

static KERNEL_CLONES double squares(const float *x, int64_t n)
{
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sum;
}

struct rows_work {
    double *out;
    const float *x;
    int64_t cols;
};

static void rows_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct rows_work *w = ctx;

    (void)thread;
    for (int64_t r = lo; r < hi; r++)
        w->out[r] = squares(w->x + r * w->cols, w->cols);
}

void sum_squares_rows(double *out, const float *x, int64_t rows, int64_t cols)
{
    struct rows_work w = { out, x, cols };

    kernels_for(rows, kernels_grain(cols * 4), rows_range, &w);
}

enum { SUM_PARTS = 64 }; /* the same partial sums for any number of threads */

struct sum_work {
    const float *x;
    int64_t n;
    double part[SUM_PARTS];
};

static void sum_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    struct sum_work *s = ctx;

    (void)thread;
    for (int64_t i = lo; i < hi; i++) {
        int64_t a = s->n / SUM_PARTS * i, b = i + 1 < SUM_PARTS ? a + s->n / SUM_PARTS : s->n;
        s->part[i] = squares(s->x + a, b - a);
    }
}

double sum_squares(const float *x, int64_t n)
{
    struct sum_work s = { .x = x, .n = n };
    double sum = 0;

    kernels_for(SUM_PARTS, kernels_grain(n / SUM_PARTS * 4), sum_range, &s);
    for (int i = 0; i < SUM_PARTS; i++)
        sum += s.part[i];
    return sum;
}
