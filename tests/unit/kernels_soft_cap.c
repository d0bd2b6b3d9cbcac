/* tests/unit/kernels_soft_cap.c - against tanh in double, from the smallest numbers to infinity. */
#include "kernels/soft_cap.h"

#include "tests/unit/kernels_support.h"

static void check(const float *x, const float *y, int64_t n, float cap)
{
    for (int64_t i = 0; i < n; i++) {
        double want = (double)cap * tanh((double)x[i] / (double)cap);

        cr_assert_leq(fabs((double)y[i] - want), 5 * 0x1p-24 * fabs(want) + 0x1p-140,
                      "%.9g with a cap of %g: %.9g, not %.9g", (double)x[i], (double)cap,
                      (double)y[i], want);
    }
}

Test(soft_cap, is_a_tanh_for_numbers_of_any_size)
{
    struct rng r = rng_start("soft_cap");

    for (int i = 0; i < 60; i++) {
        int64_t n = rng_int(&r, 0, 3000);
        float cap = (float)ldexp(1, (int)rng_int(&r, -6, 6));
        float *x = random_floats(&r, n, ldexp(1, (int)rng_int(&r, -40, 12)));
        float *y = filled_floats(n + 1, 7);

        use_threads(1 + i % 3);
        memcpy(y, x, (size_t)n * sizeof *y);
        RUN(soft_cap, soft_cap, y, n, cap, DTYPE_F32);
        check(x, y, n, cap);
        cr_assert_eq(y[n], 7);
        free(x);
        free(y);
    }
}

Test(soft_cap, the_ends_are_the_cap_and_nan_stays)
{
    float x[] = { INFINITY, -INFINITY, 1e30f, -1e30f, 0, NAN };

    RUN(soft_cap, soft_cap, x, 6, 30, DTYPE_F32);
    cr_assert(x[0] == 30 && x[1] == -30 && x[2] == 30 && x[3] == -30 && x[4] == 0 && isnan(x[5]));
}
