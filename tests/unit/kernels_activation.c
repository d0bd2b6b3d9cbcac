/* tests/unit/kernels_activation.c - activation functions and their gradients, against double. */
#include "kernels/activation.h"

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

static double erf_gelu(double u)
{
    return u / 2 * erfc(-u / sqrt(2));
}

static double erf_gelu_slope(double u)
{
    return erfc(-u / sqrt(2)) / 2 + u * exp(-u * u / 2) / sqrt(2 * M_PI);
}

struct one {
    enum activation_kind kind;
    enum dtype type;
    double u, dy;
};

/* The error of GELU is what the type allows; that of an exponential grows with its argument. */
static void check_gelu(const struct one *a, float y, float du)
{
    bool has_erf = a->kind == ACTIVATION_GELU_ERF;
    double want = has_erf ? erf_gelu(a->u) : gelu(a->u), e = a->type == DTYPE_F32 ? 1e-6 : 0x1p-8;
    double slope = has_erf ? erf_gelu_slope(a->u) : gelu_slope(a->u);
    double exponent = fmax(fabs(inner(a->u)), a->u * a->u / 2);

    assert_near(y, want, e * fabs(want) * (1 + exponent) + 1e-37, "y");
    assert_near(du, a->dy * slope, 3 * e + e * fabs(slope), "du");
}

/* ReLU has no rounding of its own. */
static void check_relu(const struct one *a, float y, float du)
{
    double want = a->u > 0 ? a->u : 0, want_du = a->u > 0 ? a->dy : 0;
    double e = a->type == DTYPE_F32 ? 0 : 0x1p-8;

    assert_near(y, want, e * want, "y");
    assert_near(du, want_du, e * fabs(want_du), "du");
}

static void activation_case(struct rng *r, enum activation_kind kind, enum dtype type, int64_t n)
{
    float *u = random_floats(r, n, rng_int(r, 0, 1) ? 3 : 30), *dy = random_floats(r, n, 1);
    void *y = calloc((size_t)n, 4), *du = calloc((size_t)n, 4);
    float *got_y, *got_du, *in_place = malloc((size_t)n * sizeof *in_place);

    u[rng_int(r, 0, n - 1)] = 0;
    RUN(activation_forward, activation_forward, y, type, u, n, DTYPE_F32, kind);
    RUN(activation_backward, activation_backward, du, type, dy, u, n, DTYPE_F32, kind);
    got_y = as_floats(type, y, n);
    got_du = as_floats(type, du, n);
    for (int64_t i = 0; i < n; i++)
        (kind == ACTIVATION_RELU ? check_relu : check_gelu)(
            &(struct one){ kind, type, (double)u[i], (double)dy[i] }, got_y[i], got_du[i]);
    memcpy(in_place, u, (size_t)n * sizeof *u);
    RUN(activation_backward, activation_backward, in_place, DTYPE_F32, dy, in_place, n, DTYPE_F32,
        kind);
    RUN(activation_backward, activation_backward, du, DTYPE_F32, dy, u, n, DTYPE_F32, kind);
    cr_assert_eq(memcmp(in_place, du, (size_t)n * 4), 0, "in place");
    free(u), free(dy), free(y), free(du), free(got_y), free(got_du), free(in_place);
}

Test(activation, agrees_with_double_arithmetic)
{
    struct rng r = rng_start("activation");

    for (int i = 0; i < 120; i++) {
        use_threads((int)rng_int(&r, 1, 3));
        activation_case(&r, (enum activation_kind)(i / 2 % 3), i % 2 ? DTYPE_F32 : DTYPE_BF16,
                        rng_int(&r, 1, 20000));
    }
}

Test(activation, large_inputs_of_gelu_do_not_overflow)
{
    float u[6] = { 100, -100, 3e10f, -3e10f, 0, -1e-30f }, dy[6] = { 1, 1, 1, 1, 1, 1 };
    float y[6], du[6];
    const float want[6] = { 100, 0, 3e10f, 0, 0, -5e-31f }, slope[6] = { 1, 0, 1, 0, 0.5f, 0.5f };

    for (int i = 0; i < 2 * 6; i++) {
        enum activation_kind kind = i < 6 ? ACTIVATION_GELU_TANH : ACTIVATION_GELU_ERF;
        int k = i % 6;

        RUN(activation_forward, activation_forward, y, DTYPE_F32, u, 6, DTYPE_F32, kind);
        RUN(activation_backward, activation_backward, du, DTYPE_F32, dy, u, 6, DTYPE_F32, kind);
        assert_near(y[k], want[k], 1e-6 * fabs((double)want[k]), "y");
        assert_near(du[k], slope[k], 1e-6, "du");
    }
}

Test(activation, relu_keeps_what_is_not_a_number)
{
    float u[4] = { NAN, INFINITY, -INFINITY, -NAN }, dy[4] = { 1, 2, 3, 4 }, y[4], du[4];

    RUN(activation_forward, activation_forward, y, DTYPE_F32, u, 4, DTYPE_F32, ACTIVATION_RELU);
    RUN(activation_backward, activation_backward, du, DTYPE_F32, dy, u, 4, DTYPE_F32,
        ACTIVATION_RELU);
    cr_assert(isnan(y[0]) && isinf(y[1]) && y[2] == 0 && isnan(y[3]));
    cr_assert(du[0] == 1 && du[1] == 2 && du[2] == 0 && du[3] == 4);
}

static void assert_refusal(const char *message)
{
    struct tp_err err = take_failure();

    cr_assert_eq(err.status, TP_E_INTERNAL);
    cr_assert(strstr(err.msg, message), "%s", err.msg);
}

Test(activation, the_cpu_refuses_inputs_in_bf16)
{
    static const char *const messages[] = {
        [ACTIVATION_GELU_TANH] = "GELU on the CPU has f32 inputs, not bf16",
        [ACTIVATION_GELU_ERF] = "GELU on the CPU has f32 inputs, not bf16",
        [ACTIVATION_RELU] = "ReLU on the CPU has f32 inputs, not bf16",
    };

    for (int i = ACTIVATION_GELU_TANH; i <= ACTIVATION_RELU; i++) {
        RUN(activation_forward, activation_forward, .kind = i, .in_type = DTYPE_BF16);
        assert_refusal(messages[i]);
        RUN(activation_backward, activation_backward, .kind = i, .in_type = DTYPE_BF16);
        assert_refusal(messages[i]);
    }
}
