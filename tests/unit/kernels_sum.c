/* tests/unit/kernels_sum.c - sums whose order is part of the result. */
#include "kernels/sum.h"

#include "tests/unit/kernels_support.h"

Test(sum, adds_rows_of_different_strides_and_skips_the_padding)
{
    struct rng r = rng_start("sum/add");

    for (int i = 0; i < 40; i++) {
        int64_t rows = rng_int(&r, 1, 40), cols = rng_int(&r, 1, 300);
        int64_t ldy = cols + rng_int(&r, 0, 9), ldx = cols + rng_int(&r, 0, 9);
        float *y = random_floats(&r, rows * ldy, 1), *x = random_floats(&r, rows * ldx, 1);
        float *was = random_floats(&r, rows * ldy, 1);

        memcpy(was, y, (size_t)(rows * ldy) * sizeof *y);
        use_threads(1 + i % 3);
        RUN(sum_add, sum_add, y, x, rows, cols, ldy, ldx);
        for (int64_t k = 0; k < rows * ldy; k++) {
            int64_t row = k / ldy, col = k % ldy;

            cr_assert_eq(y[k], col < cols ? was[k] + x[row * ldx + col] : was[k]);
        }
        free(y), free(x), free(was);
    }
}

/* The same row of x for each row of y, or all rows of x to one row of y, in their order. */
Test(sum, adds_one_row_to_many_and_many_to_one)
{
    struct rng r = rng_start("sum/add one");

    for (int i = 0; i < 40; i++) {
        int64_t rows = rng_int(&r, 2, 40), cols = rng_int(&r, 1, 9000), ld = cols + i % 3;
        float *many = random_floats(&r, rows * ld, 1), *one = random_floats(&r, cols, 1);
        float *to = random_floats(&r, cols, 1), *sum = filled_floats(cols, 0);

        use_threads(1 + i % 3);
        memcpy(sum, to, (size_t)cols * sizeof *to);
        for (int64_t k = 0; k < rows * cols; k++)
            sum[k % cols] += many[k / cols * ld + k % cols];
        RUN(sum_add, sum_add, to, many, rows, cols, 0, ld);
        cr_assert_eq(memcmp(to, sum, (size_t)cols * sizeof *to), 0);
        memset(many, 0, (size_t)(rows * ld) * sizeof *many);
        RUN(sum_add, sum_add, many, one, rows, cols, ld, 0);
        for (int64_t k = 0; k < rows * ld; k++)
            cr_assert_eq(many[k], k % ld < cols ? one[k % ld] : 0);
        free(many), free(one), free(to), free(sum);
    }
}

/* 2^25 + 1 rounds to 2^25, so the result shows the order. */
static const float H = 33554432;

Test(sum, follows_the_tree)
{
    enum { N = 70000, STEP = N + 5 };
    const float parts[4] = { 1, 1, H, -H };
    float *x = filled_floats(4 * STEP, 0);

    for (int s = 0; s < 4; s++)
        for (int i = 0; i < N; i++)
            x[s * STEP + i] = parts[s];
    use_threads(2);
    RUN(sum_tree, sum_tree, x, x, 4, STEP, N); /* in place */
    for (int i = 0; i < N; i++)
        cr_assert_eq(x[i], 2, "element %d is %g", i, (double)x[i]);
    RUN(sum_tree, sum_tree, x, x, 0, STEP, N);
    cr_assert_eq(take_failure().status, TP_E_INTERNAL);
    free(x);
}

Test(sum, adds_levels_from_the_left)
{
    enum { N = 50000 };
    float *x = filled_floats(N, 1), *a = filled_floats(N, H), *b = filled_floats(N, -H);
    float *to = filled_floats(N, 0);

    use_threads(2);
    RUN(sum_levels, sum_levels, .to = to, .x = x, .n_levels = 2, .level = { a, b }, .n = N);
    for (int i = 0; i < N; i++)
        cr_assert_eq(to[i], 0, "(1 + H) - H is 0, and not %g", (double)to[i]);
    RUN(sum_levels, sum_levels, .to = a, .x = a, .n_levels = 2, .level = { b, x }, .n = N);
    for (int i = 0; i < N; i++)
        cr_assert_eq(a[i], 1, "(H - H) + 1 is 1, and not %g", (double)a[i]);
    free(x), free(a), free(b), free(to);
}

Test(sum, adds_doubles_in_groups_and_by_halves)
{
    const double big = 0x1p60, in[8] = { 1, big, -big, 1, 1, 2, 3, 4 };
    double out[8], copy[8];

    memcpy(copy, in, sizeof in);
    RUN(sum_doubles, sum_doubles, out, in, 2, 4);
    cr_expect(out[0] == 1 && out[1] == 10);          /* ((1 + big) - big) + 1 */
    RUN(sum_doubles, sum_doubles, copy, copy, 4, 2); /* in place */
    cr_expect(copy[0] == big && copy[1] == -big && copy[2] == 3 && copy[3] == 7);
    RUN(sum_halves, sum_halves, out, in, 4);
    cr_expect_eq(*out, 0, "(1 + big) + (-big + 1) is 0, and not %g", *out);
    RUN(sum_halves, sum_halves, out, in + 4, 1);
    cr_expect_eq(*out, 1);
    RUN(sum_halves, sum_halves, out, in, 3);
    cr_expect_eq(take_failure().status, TP_E_INTERNAL);
}
