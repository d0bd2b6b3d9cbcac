/* tests/unit/kernels_gelu.c - gelu_new and its gradient, against double. */
#include "kernels/gelu.h"

#include "tests/unit/kernels_support.h"

static double inner(double u)
{
    return sqrt(2 / M_PI) * (u + 0.044715 * u * u * u);
}

/* (1 + tanh z) / 2 = 1 / (1 + e^-2z), which keeps its digits where tanh is near -1. */
static double gelu(double u)
{
    return u / (1 + exp(-2 * inner(u)));
}

static double gelu_slope(double u)
{
    double t = tanh(inner(u));

    return 0.5 * (1 + t) + 0.5 * u * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * u * u);
}

static void gelu_case(struct rng *r, enum dtype type, int64_t n)
{
    float *u = random_floats(r, n, rng_int(r, 0, 1) ? 3 : 30), *dy = random_floats(r, n, 1);
    void *y = calloc((size_t)n, 4), *du = calloc((size_t)n, 4);
    float *got_y, *got_du, *in_place = malloc((size_t)n * sizeof *in_place);
    double e = type == DTYPE_F32 ? 1e-6 : 0x1p-8;

    RUN(gelu_forward, gelu_forward, y, type, u, n, DTYPE_F32);
    RUN(gelu_backward, gelu_backward, du, type, dy, u, n, DTYPE_F32);
    got_y = as_floats(type, y, n);
    got_du = as_floats(type, du, n);
    for (int64_t i = 0; i < n; i++) {
        double x = (double)u[i];

        /* an exponential's relative error grows with its argument */
        assert_near(got_y[i], gelu(x), e * fabs(gelu(x)) * (1 + fabs(inner(x))) + 1e-37, "y");
        assert_near(got_du[i], (double)dy[i] * gelu_slope(x), 3 * e + e * fabs(gelu_slope(x)),
                    "du");
    }
    memcpy(in_place, u, (size_t)n * sizeof *u);
    RUN(gelu_backward, gelu_backward, in_place, DTYPE_F32, dy, in_place, n, DTYPE_F32);
    RUN(gelu_backward, gelu_backward, du, DTYPE_F32, dy, u, n, DTYPE_F32);
    cr_assert_eq(memcmp(in_place, du, (size_t)n * 4), 0, "in place");
    free(u), free(dy), free(y), free(du), free(got_y), free(got_du), free(in_place);
}

Test(gelu, agrees_with_double_arithmetic)
{
    struct rng r = rng_start("gelu");

    for (int i = 0; i < 60; i++) {
        use_threads((int)rng_int(&r, 1, 3));
        gelu_case(&r, i % 2 ? DTYPE_F32 : DTYPE_BF16, rng_int(&r, 1, 20000));
    }
}

Test(gelu, large_inputs_do_not_overflow)
{
    float u[6] = { 100, -100, 3e10f, -3e10f, 0, -1e-30f }, dy[6] = { 1, 1, 1, 1, 1, 1 };
    float y[6], du[6];
    const float want[6] = { 100, 0, 3e10f, 0, 0, -5e-31f }, slope[6] = { 1, 0, 1, 0, 0.5f, 0.5f };

    RUN(gelu_forward, gelu_forward, y, DTYPE_F32, u, 6, DTYPE_F32);
    RUN(gelu_backward, gelu_backward, du, DTYPE_F32, dy, u, 6, DTYPE_F32);
    for (int i = 0; i < 6; i++) {
        assert_near(y[i], want[i], 1e-6 * fabs((double)want[i]), "y");
        assert_near(du[i], slope[i], 1e-6, "du");
    }
}

Test(gelu, the_cpu_refuses_inputs_in_bf16)
{
    struct tp_err err;

    RUN(gelu_forward, gelu_forward, .in_type = DTYPE_BF16);
    err = take_failure();
    cr_assert_eq(err.status, TP_E_INTERNAL);
    cr_assert(strstr(err.msg, "GELU on the CPU has f32 inputs, not bf16"), "%s", err.msg);
    RUN(gelu_backward, gelu_backward, .in_type = DTYPE_BF16);
    err = take_failure();
    cr_assert_eq(err.status, TP_E_INTERNAL);
    cr_assert(strstr(err.msg, "GELU on the CPU has f32 inputs, not bf16"), "%s", err.msg);
}
