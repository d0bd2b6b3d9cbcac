/* tests/unit/kernels_bias.c - adding a bias, and its gradient.
 *
 * covers: kernels/cpu/column_sums */
#include "kernels/bias.h"

#include "tests/unit/kernels_support.h"

Test(bias, adds_to_every_row_and_sums_over_them)
{
    struct rng r = rng_start("bias");

    for (int i = 0; i < 60; i++) {
        enum dtype type = i % 2 ? DTYPE_F32 : DTYPE_BF16;
        int64_t rows = rng_int(&r, 1, 300), cols = rng_int(&r, 1, 400), n = rows * cols;
        float *x = random_floats(&r, n, 2), *bias = random_floats(&r, cols, 2);
        float *was = malloc((size_t)n * sizeof *was), *db = filled_floats(cols, 0.5f);
        void *dy;

        use_threads((int)rng_int(&r, 1, 3));
        memcpy(was, x, (size_t)n * sizeof *was);
        RUN(bias_residual_add, bias_residual_add, x, NULL, bias, rows, cols, .block = NULL);
        for (int64_t k = 0; k < n; k++)
            cr_assert_eq(x[k], was[k] + bias[k % cols]);
        RUN(bias_residual_add, bias_residual_add, was, was, bias, rows, cols,
            .block = NULL); /* was = 2 was + bias */
        for (int64_t k = 0; k < n; k++)
            cr_assert(fabsf(was[k] - (2 * x[k] - bias[k % cols])) < 1e-6f * 8);
        dy = stored_as(type, x, n);
        RUN(bias_gradient, bias_gradient, db, dy, type, rows, cols, .count = 0);
        for (int64_t c = 0; c < cols; c++) {
            double want = 0.5, size = 0.5;

            for (int64_t row = 0; row < rows; row++) {
                want += (double)x[row * cols + c];
                size += fabs((double)x[row * cols + c]);
            }
            assert_near(db[c], want, 5e-7 * size, "db");
        }
        free(x), free(bias), free(was), free(db), free(dy);
    }
}

/* With any number of threads, each of several sums has the bits of one thread's sum. */
Test(bias, several_gradients_have_the_bits_of_one_thread)
{
    struct rng r = rng_start("bias/several");

    for (int i = 0; i < 30; i++) {
        int count = (int)rng_int(&r, 1, 5);
        int64_t rows = rng_int(&r, 1, 100), cols = rng_int(&r, 1, 200), step = rows * cols + 3;
        float *dy = random_floats(&r, count * step, 1), *got = filled_floats(count * (cols + 2), 1);
        float *want = filled_floats(cols, 0);

        use_threads(3);
        RUN(bias_gradient, bias_gradient, got, dy, DTYPE_F32, rows, cols, count, cols + 2, step,
            .clear = i % 2 == 0);
        use_threads(1);
        for (int k = 0; k < count; k++) {
            for (int64_t c = 0; c < cols; c++)
                want[c] = i % 2 ? 1 : 0;
            RUN(bias_gradient, bias_gradient, want, dy + k * step, DTYPE_F32, rows, cols,
                .count = 0);
            cr_assert_eq(memcmp(got + k * (cols + 2), want, (size_t)cols * sizeof *want), 0);
            cr_assert_eq(got[k * (cols + 2) + cols], 1, "between the sums");
        }
        free(dy), free(got), free(want);
    }
}
