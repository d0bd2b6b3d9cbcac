/* tests/unit/kernels_bias.c - adding a bias, and its gradient. */
#include "kernels/bias.h"

#include "kernels/cpu/thread.h"
#include "tests/unit/kernels_support.h"

Test(bias, adds_to_every_row_and_sums_over_them)
{
    struct rng r = rng_start("bias");

    for (int i = 0; i < 60; i++) {
        enum dtype type = i % 2 ? DTYPE_F32 : DTYPE_BF16;
        int64_t rows = rng_int(&r, 1, 300), cols = rng_int(&r, 1, 400), n = rows * cols;
        float *x = random_floats(&r, n, 2), *bias = random_floats(&r, cols, 2);
        float *was = malloc((size_t)n * sizeof *was), *db = filled_floats(cols, 0.5f);
        float *workspace;
        void *dy;

        kernels_set_threads((int)rng_int(&r, 1, 3));
        workspace = filled_floats(bias_workspace(cols), NAN);
        memcpy(was, x, (size_t)n * sizeof *was);
        bias_add(x, bias, rows, cols);
        for (int64_t k = 0; k < n; k++)
            cr_assert_eq(x[k], was[k] + bias[k % cols]);
        residual_add(was, was, bias, rows, cols); /* twice as much, and the bias */
        for (int64_t k = 0; k < n; k++)
            cr_assert(fabsf(was[k] - (2 * x[k] - bias[k % cols])) < 1e-6f * 8);
        dy = stored_as(type, x, n);
        bias_gradient(db, dy, type, rows, cols, workspace);
        for (int64_t c = 0; c < cols; c++) {
            double want = 0.5, size = 0.5;

            for (int64_t row = 0; row < rows; row++) {
                want += (double)x[row * cols + c];
                size += fabs((double)x[row * cols + c]);
            }
            assert_near(db[c], want, 5e-7 * size, "db");
        }
        free(x), free(bias), free(was), free(db), free(dy), free(workspace);
    }
}
