/* tests/unit/kernels_gemm.c - matrix products against a simple loop in double.
 *
 * covers: kernels/cpu/gemm_bf16 kernels/cpu/gemm_onednn kernels/cpu/panel kernels/cpu/panel_amx
 * covers: kernels/cpu/unit kernels/cpu/thread_buffer kernels/cpu/onednn_matmul */
#include "kernels/gemm.h"

#include <sys/resource.h>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/unit.h"
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
    float *bias = random_floats(r, g.n, 1);
    if (g.beta == 0)
        for (int64_t i = 0; i < g.m * g.ldc; i++)
            c[i] = i % g.ldc < g.n ? NAN : 7; /* must not be read; padding must not be written */
    memcpy(want, c, (size_t)(g.m * g.ldc) * sizeof *c);
    g.a = stored_as(g.type, fa, rows_a * g.lda);
    g.b = stored_as(g.type, fb, rows_b * g.ldb);
    g.bias = rng_int(r, 0, 1) ? bias : NULL;
    g.c = want;
    gemm_reference(&g);
    g.c = c;
    cr_assert_eq(gemm_one(kernels_on(), &g, &err), TP_OK, "%s", err.msg);
    for (int64_t i = 0; i < g.m * g.ldc; i++)
        cr_assert(fabs((double)c[i] - (double)want[i]) <=
                      1e-6 * (1 + sqrt((double)g.k)) * (fabs((double)g.alpha) + 1),
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
    free(bias);
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

Test(gemm, f32_equals_the_simple_loop)
{
    random_products("gemm/f32 small", DTYPE_F32, 9, 400);
    random_products("gemm/f32 large", DTYPE_F32, 150, 60);
}

Test(gemm, bf16_equals_the_simple_loop)
{
    random_products("gemm/bf16 small", DTYPE_BF16, 9, 150);
    random_products("gemm/bf16 large", DTYPE_BF16, 150, 60);
}

/* Larger than the blocks that are packed at a time, along each axis in turn. */
static void products_in_blocks(const char *name, const int64_t sizes[3][3])
{
    struct rng r = rng_start(name);

    for (int i = 0; i < 3; i++)
        for (int form = 0; form < 4; form++) {
            struct gemm g = { .type = DTYPE_BF16,
                              .trans_a = form & 1,
                              .trans_b = form & 2,
                              .m = sizes[i][0] + rng_int(&r, 0, 9),
                              .n = sizes[i][1] + rng_int(&r, 0, 9),
                              .k = sizes[i][2] + rng_int(&r, 0, 9),
                              .alpha = 1,
                              .beta = 1 };
            compare(&r, g);
        }
}

Test(gemm, bf16_in_several_blocks_equals_the_simple_loop)
{
    const int64_t sizes[][3] = { { 400, 37, 50 }, { 5, 1100, 33 }, { 13, 70, 2301 } };

    products_in_blocks("gemm/bf16 blocks", sizes);
}

Test(gemm, bf16_without_amx_equals_the_simple_loop)
{
    kernels_on()->device->without_units = UNIT_AMX_BF16;
    random_products("gemm/bf16 without AMX, small", DTYPE_BF16, 9, 150);
    random_products("gemm/bf16 without AMX, large", DTYPE_BF16, 150, 60);
}

Test(gemm, bf16_by_onednn_equals_the_simple_loop)
{
    kernels_on()->device->without_units = UNIT_AVX512_BF16;
    random_products("gemm/bf16 by oneDNN, small", DTYPE_BF16, 9, 150);
    random_products("gemm/bf16 by oneDNN, large", DTYPE_BF16, 150, 60);
}

/* oneDNN reads the variable at its first use; Criterion gives every test a process of its own. */
Test(gemm, bf16_without_the_instructions_equals_the_simple_loop)
{
    setenv("DNNL_MAX_CPU_ISA", "AVX2", 1);
    kernels_on()->device->without_units = UNIT_AVX512_BF16;
    random_products("gemm/bf16 by cast, small", DTYPE_BF16, 9, 150);
    random_products("gemm/bf16 by cast, large", DTYPE_BF16, 150, 60);
}

Test(gemm, bf16_without_the_instructions_in_several_blocks_equals_the_simple_loop)
{
    const int64_t sizes[][3] = { { 2045, 3, 1020 }, { 5, 2050, 1030 }, { 9, 7, 3070 } };

    setenv("DNNL_MAX_CPU_ISA", "AVX2", 1);
    kernels_on()->device->without_units = UNIT_AVX512_BF16;
    products_in_blocks("gemm/bf16 by cast, blocks", sizes);
}

static int64_t peak_bytes(void)
{
    struct rusage u;

    cr_assert_eq(getrusage(RUSAGE_SELF, &u), 0);
    return (int64_t)u.ru_maxrss * 1024;
}

/* tp-train's --mem does not count copies of operands, of which the logits are the largest. */
Test(gemm, bf16_without_the_instructions_takes_little_memory)
{
    enum { M = 64, N = 8, K = 1 << 18 };
    uint16_t *ones = malloc((size_t)M * K * sizeof *ones);
    float *c = filled_floats((int64_t)M * N, 7);
    const struct gemm g = { .m = M,
                            .n = N,
                            .k = K,
                            .a = ones,
                            .lda = K,
                            .b = ones,
                            .ldb = N,
                            .c = c,
                            .ldc = N,
                            .alpha = 1,
                            .type = DTYPE_BF16 };
    struct tp_err err = { 0 };
    int64_t before;

    setenv("DNNL_MAX_CPU_ISA", "AVX2", 1);
    kernels_on()->device->without_units = UNIT_AVX512_BF16;
    cr_assert(ones);
    for (int64_t i = 0; i < (int64_t)M * K; i++)
        ones[i] = 0x3f80;
    before = peak_bytes();
    cr_assert_eq(gemm_one(kernels_on(), &g, &err), TP_OK, "%s", err.msg);
    cr_expect_lt(peak_bytes() - before, 32 << 20);
    for (int i = 0; i < M * N; i++)
        cr_assert_eq(c[i], (float)K);
    free(ones);
    free(c);
}

/* C of rows row .. and columns col .. of one product, on their own, with some threads and without
 * some units. */
static float *part_of_product(const struct gemm *whole, int64_t row, int64_t col, int threads,
                              unsigned without_units)
{
    struct gemm g = *whole;
    const uint16_t *a = g.a, *b = g.b;
    struct tp_err err = { 0 };

    g.m -= row, g.n -= col, g.ldc = g.n;
    g.a = a + (g.trans_a ? row : row * g.lda);
    g.b = b + (g.trans_b ? col * g.ldb : col);
    g.c = filled_floats(g.m * g.n, 7);
    use_threads(threads);
    kernels_on()->device->without_units = without_units;
    cr_assert_eq(gemm_one(kernels_on(), &g, &err), TP_OK, "%s", err.msg);
    return g.c;
}

static void assert_that_bits_depend_on_k_alone(const char *name, unsigned without_units)
{
    enum { M = 131, N = 150, K = 1333 };
    struct rng r = rng_start(name);
    float *fa = random_floats(&r, M * K, 1), *fb = random_floats(&r, K * N, 1);

    if (!unit_usable(NULL, UNIT_AVX512_BF16))
        cr_skip("this processor multiplies bf16 by oneDNN");
    for (int form = 0; form < 4; form++) {
        struct gemm g = { .type = DTYPE_BF16,
                          .trans_a = form & 1,
                          .trans_b = form & 2,
                          .m = M,
                          .n = N,
                          .k = K,
                          .alpha = 1 };
        int64_t row = rng_int(&r, 0, M - 1), col = rng_int(&r, 0, N - 1);
        float *all, *part;
        g.a = stored_as(DTYPE_BF16, fa, M * K);
        g.b = stored_as(DTYPE_BF16, fb, K * N);
        g.lda = g.trans_a ? M : K, g.ldb = g.trans_b ? K : N;
        all = part_of_product(&g, 0, 0, 1, without_units);
        part = part_of_product(&g, row, col, 1 + form % 3, without_units);
        for (int64_t i = row; i < M; i++)
            cr_assert_eq(memcmp(all + i * N + col, part + (i - row) * (N - col),
                                (size_t)(N - col) * sizeof *all),
                         0, "form %d, row %lld of those from (%lld, %lld)", form, (long long)i,
                         (long long)row, (long long)col);
        free((void *)(uintptr_t)g.a), free((void *)(uintptr_t)g.b), free(all), free(part);
    }
    free(fa), free(fb);
}

Test(gemm, bits_of_own_bf16_products_do_not_depend_on_rows_columns_or_threads)
{
    assert_that_bits_depend_on_k_alone("gemm/bf16 bits", 0);
    assert_that_bits_depend_on_k_alone("gemm/bf16 bits without AMX", UNIT_AMX_BF16);
}

Test(gemm, two_threads_give_the_same_result)
{
    use_threads(2);
    random_products("gemm/f32 two threads", DTYPE_F32, 150, 20);
    random_products("gemm/bf16 two threads", DTYPE_BF16, 150, 20);
}

Test(gemm, other_types_are_refused)
{
    struct gemm g = { .m = 1, .n = 1, .k = 1, .type = DTYPE_F16 };
    struct tp_err err;

    kernels_cpu.gemm(kernels_on(), &g);
    err = take_failure();
    cr_assert_eq(err.status, TP_E_INTERNAL);
    cr_assert(strstr(err.msg, "f16"), "%s", err.msg);
}

Test(gemm, the_cpu_refuses_results_in_bf16)
{
    struct gemm g = { .m = 1, .n = 1, .k = 1, .type = DTYPE_BF16, .c_type = DTYPE_BF16 };
    struct tp_err err;

    kernels_cpu.gemm(kernels_on(), &g);
    err = take_failure();
    cr_assert_eq(err.status, TP_E_INTERNAL);
    cr_assert(strstr(err.msg, "the CPU's products are f32, not bf16"), "%s", err.msg);
}

/* ---- several products ---- */

/* Compare C of product i with a product that is computed alone, of `size` along the axis. */
static void check_one(const struct gemm *g, int i, int64_t size, const float *got)
{
    struct gemm one = *g;
    int64_t n;

    one.a = (const float *)g->a + i * g->batch.step_a;
    one.b = (const float *)g->b + i * g->batch.step_b;
    one.c = filled_floats(g->m * g->n, 0);
    if (g->batch.axis == GEMM_M)
        one.m = one.lda = size; /* A is transposed */
    if (g->batch.axis == GEMM_N)
        one.n = one.ldc = size; /* B is transposed */
    if (g->batch.axis == GEMM_K)
        one.k = one.lda = size;
    n = one.m * one.n;
    gemm_reference(&one);
    for (int64_t k = 0; k < n; k++)
        assert_near(got[i * g->batch.step_c + k], ((const float *)one.c)[k], 1e-5, "element");
    for (int64_t k = n; k < g->batch.step_c; k++)
        cr_assert_eq(got[i * g->batch.step_c + k], 7, "after product %d", i);
    free(one.c);
}

static void check_batch(struct rng *r, enum gemm_axis axis, bool together)
{
    enum { COUNT = 4 };
    int64_t size = rng_int(r, 1, 30), total = axis ? rng_int(r, 1, COUNT * size) : 0;
    struct gemm g = { .m = axis == GEMM_M ? size : rng_int(r, 1, 30),
                      .n = axis == GEMM_N ? size : rng_int(r, 1, 30),
                      .k = axis == GEMM_K ? size : rng_int(r, 1, 30),
                      .alpha = 1,
                      .batch = {
                          .count = COUNT, .axis = axis, .total = total, .together = together } };
    float *a, *b, *c;

    g.trans_a = axis == GEMM_M;
    g.trans_b = axis == GEMM_N;
    g.lda = g.trans_a ? g.m : g.k;
    g.ldb = g.trans_b ? g.k : g.n;
    g.ldc = g.n;
    g.batch.step_a = rng_int(r, 0, 1) ? g.m * g.k + 2 : 0;
    g.batch.step_b = g.k * g.n;
    g.batch.step_c = g.m * g.n + 1;
    g.a = a = random_floats(r, COUNT * (g.m * g.k + 2), 1);
    g.b = b = random_floats(r, COUNT * g.batch.step_b, 1);
    g.c = c = filled_floats(COUNT * g.batch.step_c, 7);
    use_threads((int)rng_int(r, 1, 3));
    kernels_cpu.gemm(kernels_on(), &g);
    for (int i = 0; i < COUNT; i++) {
        int64_t left = total - i * size;

        check_one(&g, i, !axis || left > size ? size : left > 0 ? left : 0, c);
    }
    free(a), free(b), free(c);
}

Test(gemm, several_products_in_one_call_equal_single_products)
{
    struct rng r = rng_start("gemm/batch");

    for (int i = 0; i < 100; i++)
        check_batch(&r, (enum gemm_axis)(i % 4), false);
    for (int i = 0; i < 30; i++)
        check_batch(&r, GEMM_NO_AXIS, true);
}
