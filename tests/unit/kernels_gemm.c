/* tests/unit/kernels_gemm.c - matrix products against the plain loop in double. */
#include "kernels/gemm.h"

#include "kernels/cpu/thread.h"
#include "tests/unit/kernels_support.h"

static void compare(struct rng *r, struct gemm g)
{
    int64_t rows_a = g.trans_a ? g.k : g.m, cols_a = g.trans_a ? g.m : g.k;
    int64_t rows_b = g.trans_b ? g.n : g.k, cols_b = g.trans_b ? g.k : g.n;
    struct tp_err err = { 0 };

    g.lda = cols_a + rng_int(r, cols_a == 0, 3);
    g.ldb = cols_b + rng_int(r, cols_b == 0, 3);
    g.ldc = g.n + rng_int(r, g.n == 0, 3);
    float *fa = random_floats(r, rows_a * g.lda, 1), *fb = random_floats(r, rows_b * g.ldb, 1);
    float *c = random_floats(r, g.m * g.ldc, 1), *want = random_floats(r, g.m * g.ldc, 0);
    if (g.beta == 0)
        for (int64_t i = 0; i < g.m * g.ldc; i++)
            c[i] = i % g.ldc < g.n ? NAN : 7; /* must not be read; padding must not be written */
    memcpy(want, c, (size_t)(g.m * g.ldc) * sizeof *c);
    g.a = stored_as(g.type, fa, rows_a * g.lda);
    g.b = stored_as(g.type, fb, rows_b * g.ldb);
    g.c = want;
    gemm_ref(&g);
    g.c = c;
    cr_assert_eq(gemm(&g, &err), TP_OK, "%s", err.msg);
    for (int64_t i = 0; i < g.m * g.ldc; i++)
        cr_assert(fabs((double)c[i] - (double)want[i]) <=
                      4e-7 * (1 + sqrt((double)g.k)) * (fabs((double)g.alpha) + 1),
                  "%s %c%c %lld x %lld x %lld alpha %g beta %g at %lld: %.9g, want %.9g",
                  dtype_name(g.type), g.trans_a ? 'T' : 'N', g.trans_b ? 'T' : 'N', (long long)g.m,
                  (long long)g.n, (long long)g.k, (double)g.alpha, (double)g.beta, (long long)i,
                  (double)c[i], (double)want[i]);
    free((void *)(uintptr_t)g.a);
    free((void *)(uintptr_t)g.b);
    free(fa);
    free(fb);
    free(c);
    free(want);
}

static void random_products(const char *name, enum dtype type, int64_t largest, int times)
{
    struct rng r = rng_start(name);
    const float alphas[] = { 1, 1, 0.125f, -0.7f, 0 }, betas[] = { 0, 1, 1, 0.5f };

    for (int i = 0; i < times; i++) {
        struct gemm g = { .type = type,
                          .trans_a = rng_int(&r, 0, 1),
                          .trans_b = rng_int(&r, 0, 1),
                          .m = rng_int(&r, 0, largest),
                          .n = rng_int(&r, 0, largest),
                          .k = rng_int(&r, 0, largest),
                          .alpha = alphas[rng_int(&r, 0, 4)],
                          .beta = betas[rng_int(&r, 0, 3)] };
        compare(&r, g);
    }
}

Test(gemm, f32_equals_the_plain_loop)
{
    random_products("gemm/f32 small", DTYPE_F32, 9, 400);
    random_products("gemm/f32 large", DTYPE_F32, 150, 60);
}

Test(gemm, bf16_equals_the_plain_loop)
{
    random_products("gemm/bf16 small", DTYPE_BF16, 9, 150);
    random_products("gemm/bf16 large", DTYPE_BF16, 150, 60);
}

/* oneDNN reads the variable at its first use; Criterion gives every test a process of its own. */
Test(gemm, bf16_without_the_instructions_equals_the_plain_loop)
{
    setenv("DNNL_MAX_CPU_ISA", "AVX2", 1);
    random_products("gemm/bf16 by cast, small", DTYPE_BF16, 9, 150);
    random_products("gemm/bf16 by cast, large", DTYPE_BF16, 150, 60);
}

Test(gemm, two_threads_give_the_same)
{
    kernels_set_threads(2);
    random_products("gemm/f32 two threads", DTYPE_F32, 150, 20);
    random_products("gemm/bf16 two threads", DTYPE_BF16, 150, 20);
}

Test(gemm, other_types_are_refused)
{
    struct gemm g = { .m = 1, .n = 1, .k = 1, .type = DTYPE_F16 };
    struct tp_err err = { 0 };

    cr_assert_eq(gemm(&g, &err), TP_E_INTERNAL);
    cr_assert(strstr(err.msg, "f16"), "%s", err.msg);
}
