/* tests/unit/kernels_layer_norm.c - layer norm, forward and gradients, against double. */
#include "kernels/layer_norm.h"

#include "tests/unit/kernels_support.h"

struct moments {
    double mean, s; /* s = sqrt(variance + eps) */
};

static struct moments moments_of(const float *x, int64_t n, double eps)
{
    struct moments m = { 0 };
    double sum = 0;

    for (int64_t i = 0; i < n; i++)
        m.mean += (double)x[i] / (double)n;
    for (int64_t i = 0; i < n; i++)
        sum += ((double)x[i] - m.mean) * ((double)x[i] - m.mean);
    m.s = sqrt(sum / (double)n + eps);
    return m;
}

static void forward_case(struct rng *r, enum dtype type, int64_t rows, int64_t cols)
{
    int64_t n = rows * cols;
    float *x = random_floats(r, n, 3), *residual = random_floats(r, n, 1);
    float *w = random_floats(r, cols, 2), *b = random_floats(r, cols, 2);
    float *x_bias = random_floats(r, cols, 2), *mean = filled_floats(rows, 0);
    float *rstd = filled_floats(rows, 0), *sum = filled_floats(n, 0), *y;
    void *out = calloc((size_t)n + 1, 4);
    bool add = rng_int(r, 0, 1), bias = rng_int(r, 0, 1);

    for (int64_t i = 0; i < n; i++) {
        sum[i] = add ? x[i] + residual[i] : x[i];
        sum[i] = bias ? sum[i] + x_bias[i % cols] : sum[i];
    }
    RUN(layer_norm_forward, layer_norm_forward, out, type, mean, rstd, x, add ? residual : NULL,
        bias ? x_bias : NULL, w, b, rows, cols, 1e-5f, .block = NULL);
    y = as_floats(type, out, n);
    cr_assert_eq(memcmp(x, sum, (size_t)n * 4), 0, "x holds the sum with residual and bias");
    for (int64_t i = 0; i < n; i++) {
        struct moments m = moments_of(sum + i / cols * cols, cols, (double)1e-5f);
        double z = ((double)sum[i] - m.mean) / m.s;
        double want = z * (double)w[i % cols] + (double)b[i % cols];
        double size = fabs(z * (double)w[i % cols]) + fabs((double)b[i % cols]);

        assert_near(mean[i / cols], m.mean, 1e-6, "mean");
        assert_near(rstd[i / cols], 1 / m.s, 1e-6 / m.s, "rstd");
        /* cols = 1: x - mean is only a rounding error, and 1 / s is large */
        assert_near(y[i], want, (type == DTYPE_F32 ? 2e-6 : 0x1p-8) * size + 1e-6 / m.s, "y");
    }
    free(x), free(residual), free(w), free(b), free(x_bias), free(mean), free(rstd), free(sum);
    free(y), free(out);
}

/* dx_j = (g_j - mean(g) - z_j mean(g z)) / s with g = dy w, z = (x - mean) / s. */
static void backward_case(struct rng *r, int64_t rows, int64_t cols)
{
    int64_t n = rows * cols;
    float *x = random_floats(r, n, 3), *dy = random_floats(r, n, 1), *w = random_floats(r, cols, 2);
    float *b = random_floats(r, cols, 2), *mean = filled_floats(rows, 0);
    float *rstd = filled_floats(rows, 0), *dx = filled_floats(n, 0.5f);
    float *dw = filled_floats(cols, 0.25f), *db = filled_floats(cols, 0.125f);
    float *y = filled_floats(n, 0);
    double *want_dw = calloc((size_t)cols, sizeof *want_dw);
    double *want_db = calloc((size_t)cols, sizeof *want_db);

    RUN(layer_norm_forward, layer_norm_forward, y, DTYPE_F32, mean, rstd, x, NULL, NULL, w, b, rows,
        cols, 0.01f, .block = NULL);
    RUN(layer_norm_backward, layer_norm_backward, dx, dw, db, dy, x, mean, rstd, w, rows, cols,
        .blocks = 0);
    for (int64_t i = 0; i < rows; i++) {
        const float *xi = x + i * cols, *dyi = dy + i * cols;
        struct moments m = moments_of(xi, cols, (double)0.01f);
        double g_mean = 0, gz_mean = 0;

        for (int64_t j = 0; j < cols; j++) {
            double g = (double)dyi[j] * (double)w[j];
            g_mean += g / (double)cols;
            gz_mean += g * ((double)xi[j] - m.mean) / m.s / (double)cols;
        }
        for (int64_t j = 0; j < cols; j++) {
            double z = ((double)xi[j] - m.mean) / m.s;
            double want = ((double)dyi[j] * (double)w[j] - g_mean - z * gz_mean) / m.s;

            assert_near(dx[i * cols + j], 0.5 + want, 2e-6 * (1 + 3 / m.s), "dx");
            want_dw[j] += (double)dyi[j] * z;
            want_db[j] += (double)dyi[j];
        }
    }
    for (int64_t j = 0; j < cols; j++) {
        assert_near(dw[j], 0.25 + want_dw[j], 2e-6 * (3 + sqrt((double)rows)), "dw");
        assert_near(db[j], 0.125 + want_db[j], 1e-6 * (1 + sqrt((double)rows)), "db");
    }
    free(x), free(dy), free(w), free(b), free(mean), free(rstd), free(dx), free(dw), free(db);
    free(y), free(want_dw), free(want_db);
}

Test(layer_norm, forward_agrees_with_double_arithmetic)
{
    struct rng r = rng_start("layer_norm/forward");

    for (int i = 0; i < 60; i++) {
        use_threads((int)rng_int(&r, 1, 3));
        forward_case(&r, i % 2 ? DTYPE_F32 : DTYPE_BF16, rng_int(&r, 1, 40), rng_int(&r, 2, 1500));
    }
}

Test(layer_norm, gradients_agree_with_double_arithmetic)
{
    struct rng r = rng_start("layer_norm/backward");

    for (int i = 0; i < 60; i++) {
        use_threads((int)rng_int(&r, 1, 3));
        backward_case(&r, rng_int(&r, 1, 200), rng_int(&r, 2, 300));
    }
}

/* With any number of threads, the sum of each block of rows has the bits of one thread's sum. */
Test(layer_norm, sums_of_blocks_have_the_bits_of_one_thread)
{
    enum { ROWS = 12, COLS = 70, BLOCKS = 4, EACH = ROWS / BLOCKS, STEP = 2 * COLS };
    struct rng r = rng_start("layer_norm/blocks");
    float *x = random_floats(&r, ROWS * COLS, 3), *dy = random_floats(&r, ROWS * COLS, 1);
    float *w = random_floats(&r, COLS, 2), *b = random_floats(&r, COLS, 2);
    float *y = filled_floats(ROWS * COLS, 0), *dx = filled_floats(ROWS * COLS, 0);
    float *got = filled_floats(BLOCKS * STEP, NAN), mean[ROWS], rstd[ROWS];

    RUN(layer_norm_forward, layer_norm_forward, y, DTYPE_F32, mean, rstd, x, NULL, NULL, w, b, ROWS,
        COLS, 1e-5f, .block = NULL);
    use_threads(3);
    RUN(layer_norm_backward, layer_norm_backward, dx, got, got + COLS, dy, x, mean, rstd, w, ROWS,
        COLS, BLOCKS, STEP, .dy_type = DTYPE_F32);
    use_threads(1);
    for (int i = 0; i < BLOCKS; i++) {
        float dw[COLS] = { 0 }, db[COLS] = { 0 }, *more = filled_floats(EACH * COLS, 0);
        int at = i * EACH;

        RUN(layer_norm_backward, layer_norm_backward, more, dw, db, dy + at * COLS, x + at * COLS,
            mean + at, rstd + at, w, EACH, COLS, .blocks = 0);
        cr_expect_eq(memcmp(got + i * STEP, dw, sizeof dw), 0, "dw of block %d", i);
        cr_expect_eq(memcmp(got + i * STEP + COLS, db, sizeof db), 0, "db of block %d", i);
        cr_expect_eq(memcmp(dx + at * COLS, more, EACH * COLS * sizeof *more), 0, "dx");
        free(more);
    }
    free(x), free(dy), free(w), free(b), free(y), free(dx), free(got);
}

Test(layer_norm, the_cpu_refuses_to_sum_dx)
{
    float sum = 0;
    struct tp_err err;

    RUN(layer_norm_backward, layer_norm_backward, .dx_sum = &sum);
    err = take_failure();
    cr_assert_eq(err.status, TP_E_INTERNAL);
    cr_assert(strstr(err.msg, "the gradient of layer norm on the CPU sums no dx"), "%s", err.msg);
}
