/* tests/unit/kernels_grad_norm.c - sums of squares and the factor of clipping. */
#include "kernels/grad_norm.h"

#include "tests/unit/kernels_support.h"

static double squares(const float *x, int64_t n)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sum;
}

Test(grad_norm, the_sum_of_squares_is_the_same_with_threads)
{
    struct rng r = rng_start("grad_norm/squares");

    for (int i = 0; i < 30; i++) {
        int64_t n = rng_int(&r, 0, i < 20 ? 200 : 2000000);
        float *x = random_floats(&r, n, 1);
        const struct grad_norm_tensor all = { x, n };
        double want = squares(x, n), one, three;

        use_threads(1);
        RUN(grad_norm_squares, grad_norm_squares, &one, &all, 1);
        assert_near(one, want, 1e-12 * want, "sum");
        use_threads(3);
        RUN(grad_norm_squares, grad_norm_squares, &three, &all, 1);
        cr_assert_eq(one, three);
        free(x);
    }
}

Test(grad_norm, a_tensor_has_the_same_sum_alone_and_among_others)
{
    struct rng r = rng_start("grad_norm/list");
    struct grad_norm_tensor list[20];
    float *x = random_floats(&r, 50000, 1);
    double together[20], alone;

    for (int i = 0; i < 20; i++)
        list[i] = (struct grad_norm_tensor){ x + rng_int(&r, 0, 20000), rng_int(&r, 0, 30000) };
    use_threads(2);
    RUN(grad_norm_squares, grad_norm_squares, together, list, 20);
    for (int i = 0; i < 20; i++) {
        RUN(grad_norm_squares, grad_norm_squares, &alone, &list[i], 1);
        cr_assert_eq(together[i], alone);
        assert_near(alone, squares(list[i].x, list[i].n), 1e-12 * alone, "sum");
    }
    free(x);
}

Test(grad_norm, rows_have_their_own_sums)
{
    struct rng r = rng_start("grad_norm/rows");

    for (int i = 0; i < 30; i++) {
        int64_t rows = rng_int(&r, 1, 60), cols = rng_int(&r, 1, 3000);
        float *x = random_floats(&r, rows * cols, 1);
        double sums[60];

        use_threads(1 + i % 3);
        RUN(grad_norm_squares_rows, grad_norm_squares_rows, sums, x, rows, cols);
        for (int64_t row = 0; row < rows; row++) {
            double want = squares(x + row * cols, cols);

            assert_near(sums[row], want, 1e-12 * want, "row");
        }
        free(x);
    }
}

Test(grad_norm, clips_only_norms_above_the_limit)
{
    static const struct {
        double squares, clip, scale;
    } cases[] = { { 4, 0, 1 }, { 4, 3, 1 }, { 4, 1, 1 / (2 + 1e-6) }, { 0, 1, 1 } };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double norm = -1, scale = -1;

        RUN(grad_norm_clip, grad_norm_clip, &cases[i].squares, cases[i].clip, &norm, &scale);
        cr_expect_eq(norm, sqrt(cases[i].squares));
        cr_expect_eq(scale, cases[i].scale, "%g clipped to %g: %g", norm, cases[i].clip, scale);
    }
}
