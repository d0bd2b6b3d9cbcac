/* tests/unit/kernels_scale.c - each element is multiplied once, for any length. */
#include "kernels/scale.h"

#include "tests/unit/kernels_support.h"

Test(scale, multiplies_each_element_once)
{
    struct rng r = rng_start("scale");

    for (int i = 0; i < 30; i++) {
        int64_t n = rng_int(&r, 0, 3000);
        float *x = random_floats(&r, n, 5), *y = filled_floats(n + 1, 7);

        use_threads(1 + i % 3);
        memcpy(y, x, (size_t)n * sizeof *y);
        RUN(scale, scale, y, n, 1.25f);
        for (int64_t k = 0; k < n; k++)
            cr_assert_eq(y[k], x[k] * 1.25f);
        cr_assert_eq(y[n], 7);
        free(x);
        free(y);
    }
}
