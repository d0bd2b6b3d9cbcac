/* tests/unit/kernels_gated.c - SwiGLU and GeGLU against double; gradients against finite
 * differences. */
#include "kernels/gated.h"

#include "tests/unit/kernels_support.h"

static double gated(enum gated_kind kind, double g, double u)
{
    if (kind == GATED_SWIGLU)
        return g / (1 + exp(-g)) * u;
    return g / 2 * (1 + tanh(sqrt(2 / M_PI) * (g + 0.044715 * g * g * g))) * u;
}

struct arrays {
    int64_t rows, cols, ld;
    enum gated_kind kind;
    enum dtype type;
    float *gate, *up, *dy;
};

/* What a result near zero may differ by: tanh, in double, loses digits near -1. */
static double least(const struct arrays *a)
{
    return a->kind == GATED_SWIGLU ? 1e-37 : 1e-6;
}

static void check_forward(const struct arrays *a)
{
    int64_t n = a->rows * a->cols;
    void *out = calloc((size_t)n + 1, 4);
    float *y;

    RUN(gated_forward, gated_forward, a->kind, a->type, out, a->gate, a->up, a->ld, a->rows,
        a->cols, NULL, DTYPE_F32);
    y = as_floats(a->type, out, n);
    for (int64_t i = 0; i < n; i++) {
        int64_t at = i / a->cols * a->ld + i % a->cols;
        double want = gated(a->kind, (double)a->gate[at], (double)a->up[at]);
        double step = a->type == DTYPE_BF16 ? 0x1p-8 : a->kind == GATED_SWIGLU ? 6e-7 : 2e-6;
        assert_near(y[i], want, step * fabs(want) + least(a), "y");
    }
    free(out);
    free(y);
}

/* dgate and dup are written to separate arrays, or (in_place) over gate and up. */
static void check_backward(const struct arrays *a, bool in_place)
{
    int64_t n = a->rows * a->ld, bytes = dtype_bytes(a->type);
    char *dgate = calloc((size_t)(n + 1), 4), *dup = calloc((size_t)(n + 1), 4);
    float *gate = filled_floats(n, 0), *up = filled_floats(n, 0), *dg, *du;
    /* GeGLU's slope is a sum of two terms, of which each has such an error */
    int terms = a->kind == GATED_SWIGLU ? 1 : 3;

    memcpy(gate, a->gate, (size_t)n * 4);
    memcpy(up, a->up, (size_t)n * 4);
    RUN(gated_backward, gated_backward, a->kind, a->type, in_place ? (void *)gate : dgate,
        in_place ? (void *)up : dup, a->dy, gate, up, a->ld, a->rows, a->cols, NULL, DTYPE_F32);
    if (in_place) {
        memcpy(dgate, gate, (size_t)(n * bytes));
        memcpy(dup, up, (size_t)(n * bytes));
    }
    dg = as_floats(a->type, dgate, n);
    du = as_floats(a->type, dup, n);
    for (int64_t i = 0; i < a->rows * a->cols; i++) {
        int64_t at = i / a->cols * a->ld + i % a->cols;
        double g = (double)a->gate[at], u = (double)a->up[at], dy = (double)a->dy[i], h = 1e-5;
        double want_g = dy * (gated(a->kind, g + h, u) - gated(a->kind, g - h, u)) / (2 * h);
        double want_u = dy * gated(a->kind, g, 1);
        double step = a->type == DTYPE_F32 ? 1e-6 : 0x1p-8;
        assert_near(dg[at], want_g,
                    terms * step * (fabs(want_g) + fabs(dy * u) * 0.2) + 1e-9 + least(a), "dgate");
        assert_near(du[at], want_u, step * fabs(want_u) + 1e-12 + least(a), "dup");
    }
    free(dgate);
    free(dup);
    free(gate);
    free(up);
    free(dg);
    free(du);
}

static void check_random(enum gated_kind kind, const char *name)
{
    struct rng r = rng_start(name);

    for (int i = 0; i < 60; i++) {
        struct arrays a = { .kind = kind, .rows = rng_int(&r, 0, 5), .cols = rng_int(&r, 1, 200) };
        a.ld = a.cols + rng_int(&r, 0, 50);
        a.type = i & 1 ? DTYPE_BF16 : DTYPE_F32;
        a.gate = random_floats(&r, a.rows * a.ld, i < 40 ? 5 : 30);
        a.up = random_floats(&r, a.rows * a.ld, 2);
        a.dy = random_floats(&r, a.rows * a.cols, 1);
        check_forward(&a);
        check_backward(&a, false);
        if (a.type == DTYPE_F32)
            check_backward(&a, true);
        free(a.gate);
        free(a.up);
        free(a.dy);
    }
}

Test(gated, swiglu_and_its_gradients)
{
    check_random(GATED_SWIGLU, "gated/swiglu");
}

Test(gated, geglu_and_its_gradients)
{
    check_random(GATED_GEGLU, "gated/geglu");
}

Test(gated, extreme_gates_stay_finite)
{
    for (enum gated_kind kind = GATED_SWIGLU; kind <= GATED_GEGLU; kind++) {
        float most = kind == GATED_SWIGLU ? 1e4f : 1e3f;
        float gate[3] = { -most, most, 0 }, up[3] = { 1, 1, 1 }, dy[3] = { 1, 1, 1 }, y[3];

        RUN(gated_forward, gated_forward, kind, DTYPE_F32, y, gate, up, 3, 1, 3, NULL, DTYPE_F32);
        cr_assert(y[0] == 0 && y[1] == most && y[2] == 0);
        RUN(gated_backward, gated_backward, kind, DTYPE_F32, gate, up, dy, gate, up, 3, 1, 3, NULL,
            DTYPE_F32);
        cr_assert(gate[0] == 0 && gate[1] == 1 && gate[2] == 0.5f);
        cr_assert(up[0] == 0 && up[1] == most && up[2] == 0);
    }
}

Test(gated, the_number_of_rows_may_be_in_device_memory)
{
    float gate[6] = { 1, 2, 3, 4, 5, 6 }, up[6] = { 1, 1, 1, 1, 1, 1 }, y[6] = { 0 }, dy[6] = { 0 };
    int32_t count = 2;

    RUN(gated_forward, gated_forward, GATED_SWIGLU, DTYPE_F32, y, gate, up, 2, 3, 2, &count,
        DTYPE_F32);
    cr_assert(y[3] > 3.9f && y[4] == 0 && y[5] == 0);
    RUN(gated_backward, gated_backward, GATED_SWIGLU, DTYPE_F32, gate, up, dy, gate, up, 2, 3, 2,
        &count, DTYPE_F32);
    cr_assert(gate[3] == 0 && gate[4] == 5 && up[5] == 1);
}

Test(gated, the_cpu_refuses_inputs_in_bf16)
{
    struct tp_err err;

    RUN(gated_forward, gated_forward, .in_type = DTYPE_BF16);
    err = take_failure();
    cr_assert_eq(err.status, TP_E_INTERNAL);
    cr_assert(strstr(err.msg, "a gated activation on the CPU has f32 inputs, not bf16"), "%s",
              err.msg);
    RUN(gated_backward, gated_backward, .in_type = DTYPE_BF16);
    err = take_failure();
    cr_assert_eq(err.status, TP_E_INTERNAL);
    cr_assert(strstr(err.msg, "a gated activation on the CPU has f32 inputs, not bf16"), "%s",
              err.msg);
}
