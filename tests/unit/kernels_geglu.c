/* tests/unit/kernels_geglu.c - GeGLU against double; gradients against finite differences. */
#include "kernels/geglu.h"

#include "tests/unit/kernels_support.h"

static double gated(double g, double u)
{
    return g / 2 * (1 + tanh(sqrt(2 / M_PI) * (g + 0.044715 * g * g * g))) * u;
}

struct arrays {
    int64_t rows, cols, ld;
    enum dtype type;
    float *gate, *up, *dy;
};

static void check_forward(const struct arrays *a)
{
    int64_t n = a->rows * a->cols;
    void *out = calloc((size_t)n + 1, 4);
    float *y;

    RUN(geglu_forward, geglu_forward, out, a->type, a->gate, a->up, a->ld, a->rows, a->cols);
    y = as_floats(a->type, out, n);
    for (int64_t i = 0; i < n; i++) {
        int64_t at = i / a->cols * a->ld + i % a->cols;
        double want = gated((double)a->gate[at], (double)a->up[at]);
        assert_near(y[i], want, (a->type == DTYPE_F32 ? 2e-6 : 0x1p-8) * fabs(want) + 1e-6, "y");
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

    memcpy(gate, a->gate, (size_t)n * 4);
    memcpy(up, a->up, (size_t)n * 4);
    RUN(geglu_backward, geglu_backward, in_place ? (void *)gate : dgate,
        in_place ? (void *)up : dup, a->type, a->dy, gate, up, a->ld, a->rows, a->cols);
    if (in_place) {
        memcpy(dgate, gate, (size_t)(n * bytes));
        memcpy(dup, up, (size_t)(n * bytes));
    }
    dg = as_floats(a->type, dgate, n);
    du = as_floats(a->type, dup, n);
    for (int64_t i = 0; i < a->rows * a->cols; i++) {
        int64_t at = i / a->cols * a->ld + i % a->cols;
        double g = (double)a->gate[at], u = (double)a->up[at], dy = (double)a->dy[i], h = 1e-5;
        double want_g = dy * (gated(g + h, u) - gated(g - h, u)) / (2 * h);
        double want_u = dy * gated(g, 1);
        double step = a->type == DTYPE_F32 ? 1e-6 : 0x1p-8;
        /* the gate's gradient is a sum of two terms, of which each has such an error */
        assert_near(dg[at], want_g, 3 * step * (fabs(want_g) + fabs(dy * u) * 0.2) + 1e-6, "dgate");
        assert_near(du[at], want_u, step * fabs(want_u) + 1e-6, "dup");
    }
    free(dgate);
    free(dup);
    free(gate);
    free(up);
    free(dg);
    free(du);
}

Test(geglu, forward_and_gradients)
{
    struct rng r = rng_start("geglu");

    for (int i = 0; i < 60; i++) {
        struct arrays a = { .rows = rng_int(&r, 0, 5), .cols = rng_int(&r, 1, 200) };
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

Test(geglu, extreme_gates_stay_finite)
{
    float gate[3] = { -1e3f, 1e3f, 0 }, up[3] = { 1, 1, 1 }, dy[3] = { 1, 1, 1 }, y[3];

    RUN(geglu_forward, geglu_forward, y, DTYPE_F32, gate, up, 3, 1, 3);
    cr_assert(y[0] == 0 && y[1] == 1e3f && y[2] == 0);
    RUN(geglu_backward, geglu_backward, gate, up, DTYPE_F32, dy, gate, up, 3, 1, 3);
    cr_assert(gate[0] == 0 && gate[1] == 1 && gate[2] == 0.5f);
    cr_assert(up[0] == 0 && up[1] == 1e3f && up[2] == 0);
}
