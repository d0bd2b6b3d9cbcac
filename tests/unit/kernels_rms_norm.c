/* tests/unit/kernels_rms_norm.c - root-mean-square norm, forward and gradients, against double. */
#include "kernels/rms_norm.h"

#include "tests/unit/kernels_support.h"

static double root_mean_square(const float *x, int64_t n, double eps)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sqrt(sum / (double)n + eps);
}

static void forward_case(struct rng *r, enum dtype type, int64_t rows, int64_t cols)
{
    int64_t n = rows * cols;
    float *x = random_floats(r, n, 3), *residual = random_floats(r, n, 1);
    float *w = random_floats(r, cols, 2), *rstd = filled_floats(rows, 0);
    float *sum = filled_floats(n, 0), *y;
    void *out = calloc((size_t)n + 1, 4);
    bool add = rng_int(r, 0, 1);

    for (int64_t i = 0; i < n; i++)
        sum[i] = add ? x[i] + residual[i] : x[i];
    RUN(rms_norm_forward, rms_norm_forward, out, type, rstd, x, add ? residual : NULL, w, rows,
        cols, 1e-5f, .block = NULL);
    y = as_floats(type, out, n);
    cr_assert_eq(memcmp(x, sum, (size_t)n * 4), 0, "x holds the sum with the residual");
    for (int64_t i = 0; i < n; i++) {
        double by = root_mean_square(sum + i / cols * cols, cols, (double)1e-5f);
        double want = (double)sum[i] / by * (double)w[i % cols];
        assert_near(rstd[i / cols], 1 / by, 1e-6 / by, "rstd");
        assert_near(y[i], want, (type == DTYPE_F32 ? 1.2e-6 : 0x1.02p-8) * fabs(want) + 1e-30, "y");
    }
    free(x);
    free(residual);
    free(w);
    free(rstd);
    free(sum);
    free(y);
    free(out);
}

/* dx_j = dy_j w_j / s - x_j sum(dy w x) / (n s^3), dw_j = sum over rows of dy_j x_j / s. */
static void backward_case(struct rng *r, int64_t rows, int64_t cols)
{
    int64_t n = rows * cols;
    float *x = random_floats(r, n, 3), *dy = random_floats(r, n, 1), *w = random_floats(r, cols, 2);
    float *rstd = filled_floats(rows, 0), *dx = filled_floats(n, 0.5f);
    float *dw = filled_floats(cols, 0.25f), *y = filled_floats(n, 0);
    double *want_dw = calloc((size_t)cols, sizeof *want_dw);

    RUN(rms_norm_forward, rms_norm_forward, y, DTYPE_F32, rstd, x, NULL, w, rows, cols, 1e-6f,
        .block = NULL);
    RUN(rms_norm_backward, rms_norm_backward, dx, dw, dy, x, rstd, w, rows, cols, .blocks = 0);
    for (int64_t i = 0; i < rows; i++) {
        const float *xi = x + i * cols, *dyi = dy + i * cols;
        double s = root_mean_square(xi, cols, (double)1e-6f), dot = 0;
        for (int64_t j = 0; j < cols; j++)
            dot += (double)dyi[j] * (double)w[j] * (double)xi[j];
        for (int64_t j = 0; j < cols; j++) {
            double want = (double)dyi[j] * (double)w[j] / s -
                          (double)xi[j] * dot / ((double)cols * s * s * s);
            assert_near(dx[i * cols + j], 0.5 + want, 1e-6 * (1 + 3 / s), "dx");
            want_dw[j] += (double)dyi[j] * (double)xi[j] / s;
        }
    }
    for (int64_t j = 0; j < cols; j++)
        assert_near(dw[j], 0.25 + want_dw[j], 1e-6 * (1 + sqrt((double)rows)), "dw");
    free(x);
    free(dy);
    free(w);
    free(rstd);
    free(dx);
    free(dw);
    free(y);
    free(want_dw);
}

Test(rms_norm, forward_f32_and_bf16)
{
    struct rng r = rng_start("rms_norm/forward");

    for (int i = 0; i < 60; i++)
        forward_case(&r, i & 1 ? DTYPE_BF16 : DTYPE_F32, rng_int(&r, 0, 9), rng_int(&r, 1, 300));
    forward_case(&r, DTYPE_F32, 3, 5000);
}

Test(rms_norm, gradients)
{
    struct rng r = rng_start("rms_norm/backward");

    for (int i = 0; i < 60; i++)
        backward_case(&r, rng_int(&r, 0, 80), rng_int(&r, 1, 100));
}

Test(rms_norm, gradients_with_threads)
{
    struct rng r = rng_start("rms_norm/backward, 3 threads");

    use_threads(3);
    for (int i = 0; i < 5; i++)
        backward_case(&r, rng_int(&r, 0, 400), 300);
}

/* With any number of threads, the sum of each block of rows has the bits of one thread's sum. */
Test(rms_norm, sums_of_blocks_have_the_bits_of_one_thread)
{
    enum { ROWS = 12, COLS = 70, BLOCKS = 4, EACH = ROWS / BLOCKS, STEP = COLS + 3 };
    struct rng r = rng_start("rms_norm/blocks");
    float *x = random_floats(&r, ROWS * COLS, 3), *dy = random_floats(&r, ROWS * COLS, 1);
    float *w = random_floats(&r, COLS, 2), *y = filled_floats(ROWS * COLS, 0);
    float *dx = filled_floats(ROWS * COLS, 0), *got = filled_floats(BLOCKS * STEP, 7), rstd[ROWS];

    RUN(rms_norm_forward, rms_norm_forward, y, DTYPE_F32, rstd, x, NULL, w, ROWS, COLS, 1e-5f,
        .block = NULL);
    use_threads(3);
    RUN(rms_norm_backward, rms_norm_backward, dx, got, dy, x, rstd, w, ROWS, COLS, BLOCKS, STEP,
        .dy_type = DTYPE_F32);
    use_threads(1);
    for (int i = 0; i < BLOCKS; i++) {
        float dw[COLS] = { 0 }, *more = filled_floats(EACH * COLS, 0);
        int at = i * EACH;

        RUN(rms_norm_backward, rms_norm_backward, more, dw, dy + at * COLS, x + at * COLS,
            rstd + at, w, EACH, COLS, .blocks = 0);
        cr_expect_eq(memcmp(got + i * STEP, dw, sizeof dw), 0, "dw of block %d", i);
        cr_expect_eq(got[i * STEP + COLS], 7, "between the blocks");
        cr_expect_eq(memcmp(dx + at * COLS, more, EACH * COLS * sizeof *more), 0, "dx");
        free(more);
    }
    free(x), free(dy), free(w), free(y), free(dx), free(got);
}
