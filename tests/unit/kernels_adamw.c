/* tests/unit/kernels_adamw.c - the update against its formula in double. */
#include "kernels/adamw.h"

#include "kernels/cpu/vec.h"
#include "tests/unit/kernels_support.h"

static const double SCALE = 0.37;

static const struct adamw_options OPTIONS = { .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8 };
static const double WEIGHT_DECAY = 0.1;

static void one_case(struct rng *r, int64_t n)
{
    const struct adamw_options h = OPTIONS;
    double lr = 1e-3 * (1.1 + rng_real(r)), t = (double)rng_int(r, 1, 50);
    double correction1 = 1 - pow(h.beta1, t), correction2 = 1 - pow(h.beta2, t);
    const struct adamw_rates rates = { (float)(lr / correction1), (float)(1 / sqrt(correction2)),
                                       (float)(1 - lr * WEIGHT_DECAY) };
    bool decays = rng_int(r, 0, 1);
    float *p = random_floats(r, n, 1), *m = random_floats(r, n, 1e-2),
          *v = random_floats(r, n, 1e-3);
    float *g = random_floats(r, n, 1e-1), *was = filled_floats(3 * n, 0);
    uint16_t *bf16 = calloc((size_t)n + 1, 2);

    for (int64_t i = 0; i < n; i++) {
        was[3 * i] = p[i];
        was[3 * i + 1] = m[i];
        was[3 * i + 2] = v[i] = fabsf(v[i]) * (i % 5 > 0);
    }
    /* as two tensors */
    const int64_t half = n / 2;
    const struct adamw_tensor tensors[] = {
        { p, m, v, g, bf16, half, decays },
        { p + half, m + half, v + half, g + half, bf16 + half, n - half, decays },
    };
    RUN(adamw_step, adamw_step, tensors, 2, &SCALE, &rates, h);
    for (int64_t i = 0; i < n; i++) {
        double gi = (double)g[i] * SCALE;
        double m1 = h.beta1 * (double)was[3 * i + 1] + (1 - h.beta1) * gi;
        double v1 = h.beta2 * (double)was[3 * i + 2] + (1 - h.beta2) * gi * gi;
        double change = lr * (m1 / correction1) / (sqrt(v1 / correction2) + h.eps);
        double p1 = (double)was[3 * i] * (1 - (decays ? lr * WEIGHT_DECAY : 0)) - change;

        assert_near(m[i], m1, 2e-7 * (fabs((double)was[3 * i + 1]) + fabs(gi)), "m");
        assert_near(v[i], v1, 3e-7 * v1, "v");
        assert_near(p[i], p1, 1.2e-7 + 4e-6 * fabs(change), "p");
        cr_assert_eq(bf16[i], vec_to_bf16(p[i]));
    }
    free(p);
    free(m);
    free(v);
    free(g);
    free(was);
    free(bf16);
}

Test(adamw, follows_the_formula)
{
    struct rng r = rng_start("adamw");

    for (int i = 0; i < 100; i++)
        one_case(&r, rng_int(&r, 0, 70));
    one_case(&r, 50001);
}

Test(adamw, zero_gradient_at_the_start_leaves_no_nan)
{
    const struct adamw_rates rates = { 1e-2f, 4.5f, 1 };
    const double one = 1;
    float p = 2, m = 0, v = 0, g = 0;

    const struct adamw_tensor tensor = { &p, &m, &v, &g, NULL, 1, false };

    RUN(adamw_step, adamw_step, &tensor, 1, &one, &rates, OPTIONS);
    cr_assert(p == 2 && m == 0 && v == 0);
}
