/* tests/unit/kernels_scale.c - each element is changed once, for any length. */
#include "kernels/scale.h"

#include "tests/unit/kernels_support.h"

Test(scale, multiplies_each_element_once_and_adds)
{
    struct rng r = rng_start("scale");

    for (int i = 0; i < 30; i++) {
        int64_t n = rng_int(&r, 0, 3000);
        float *x = random_floats(&r, n, 5), *y = filled_floats(n + 1, 7);

        use_threads(1 + i % 3);
        memcpy(y, x, (size_t)n * sizeof *y);
        RUN(scale, scale, y, n, 0.5f, 1);
        for (int64_t k = 0; k < n; k++)
            cr_assert_eq(y[k], x[k] / 2 + 1);
        cr_assert_eq(y[n], 7);
        free(x);
        free(y);
    }
}
