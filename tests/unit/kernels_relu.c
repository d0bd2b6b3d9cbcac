/* tests/unit/kernels_relu.c - relu and its gradient have no rounding of their own. */
#include "kernels/relu.h"

#include "tests/unit/kernels_support.h"

static void relu_case(struct rng *r, enum dtype type, int64_t n)
{
    float *u = random_floats(r, n, 3), *dy = random_floats(r, n, 1);
    void *y = calloc((size_t)n, 4), *du = calloc((size_t)n, 4);
    float *got_y, *got_du, *in_place = malloc((size_t)n * sizeof *in_place);
    double e = type == DTYPE_F32 ? 0 : 0x1p-8;

    u[rng_int(r, 0, n - 1)] = 0;
    RUN(relu_forward, relu_forward, y, type, u, n, DTYPE_F32);
    RUN(relu_backward, relu_backward, du, type, dy, u, n, DTYPE_F32);
    got_y = as_floats(type, y, n);
    got_du = as_floats(type, du, n);
    for (int64_t i = 0; i < n; i++) {
        double x = u[i] > 0 ? (double)u[i] : 0, slope = u[i] > 0 ? (double)dy[i] : 0;

        assert_near(got_y[i], x, e * x, "y");
        assert_near(got_du[i], slope, e * fabs(slope), "du");
    }
    memcpy(in_place, u, (size_t)n * sizeof *u);
    RUN(relu_backward, relu_backward, in_place, DTYPE_F32, dy, in_place, n, DTYPE_F32);
    RUN(relu_backward, relu_backward, du, DTYPE_F32, dy, u, n, DTYPE_F32);
    cr_assert_eq(memcmp(in_place, du, (size_t)n * 4), 0, "in place");
    free(u), free(dy), free(y), free(du), free(got_y), free(got_du), free(in_place);
}

Test(relu, keeps_what_is_above_zero)
{
    struct rng r = rng_start("relu");

    for (int i = 0; i < 60; i++) {
        use_threads((int)rng_int(&r, 1, 3));
        relu_case(&r, i % 2 ? DTYPE_F32 : DTYPE_BF16, rng_int(&r, 1, 20000));
    }
}

Test(relu, keeps_what_is_not_a_number)
{
    float u[4] = { NAN, INFINITY, -INFINITY, -NAN }, dy[4] = { 1, 2, 3, 4 }, y[4], du[4];

    RUN(relu_forward, relu_forward, y, DTYPE_F32, u, 4, DTYPE_F32);
    RUN(relu_backward, relu_backward, du, DTYPE_F32, dy, u, 4, DTYPE_F32);
    cr_assert(isnan(y[0]) && isinf(y[1]) && y[2] == 0 && isnan(y[3]));
    cr_assert(du[0] == 1 && du[1] == 2 && du[2] == 0 && du[3] == 4);
}

Test(relu, the_cpu_refuses_inputs_in_bf16)
{
    struct tp_err err;

    RUN(relu_forward, relu_forward, .in_type = DTYPE_BF16);
    err = take_failure();
    cr_assert_eq(err.status, TP_E_INTERNAL);
    cr_assert(strstr(err.msg, "ReLU on the CPU has f32 inputs, not bf16"), "%s", err.msg);
    RUN(relu_backward, relu_backward, .in_type = DTYPE_BF16);
    err = take_failure();
    cr_assert_eq(err.status, TP_E_INTERNAL);
    cr_assert(strstr(err.msg, "ReLU on the CPU has f32 inputs, not bf16"), "%s", err.msg);
}
