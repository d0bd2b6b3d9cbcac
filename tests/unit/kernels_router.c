/* tests/unit/kernels_router.c - the router of a mixture of experts: which experts it chooses, its
 * gradients against finite differences, and the loss that balances the load. */
#include "kernels/router.h"

#include "tests/unit/kernels_support.h"

enum { EXPERTS_MAX = 9, ROWS_MAX = 12 };

static struct router_forward random_router(struct rng *r, float *probs, int32_t *chosen,
                                           float *weights)
{
    struct router_forward a = { .probs = probs, .chosen = chosen, .weights = weights };

    a.rows = rng_int(r, 1, ROWS_MAX);
    a.experts = (int)rng_int(r, 1, EXPERTS_MAX);
    a.per_row = (int)rng_int(r, 1, a.experts);
    a.is_normalized = rng_int(r, 0, 1);
    return a;
}

/* In double: the softmax of a row of scores. */
static void softmax(double *out, const double *scores, int n)
{
    double sum = 0;

    for (int e = 0; e < n; e++)
        sum += out[e] = exp(scores[e]);
    for (int e = 0; e < n; e++)
        out[e] /= sum;
}

Test(router, chooses_the_largest_and_of_equal_ones_the_first)
{
    float probs[2][4] = { { 1, 3, 3, 0 }, { 2, 2, 2, 2 } }, weights[2][3];
    int32_t chosen[2][3];

    RUN(router_forward, router_forward, probs[0], chosen[0], weights[0], 2, 4, 3, true);
    cr_assert(chosen[0][0] == 1 && chosen[0][1] == 2 && chosen[0][2] == 0);
    cr_assert(chosen[1][0] == 0 && chosen[1][1] == 1 && chosen[1][2] == 2);
    assert_near(weights[0][0], exp(3) / (2 * exp(3) + exp(1)), 1e-6, "the largest weight");
    assert_near(weights[1][1], 1.0 / 3, 1e-6, "an equal weight");
}

Test(router, chooses_different_experts_also_of_nan)
{
    float probs[4] = { NAN, 1, NAN, NAN }, weights[3];
    int32_t chosen[3];

    RUN(router_forward, router_forward, probs, chosen, weights, 1, 4, 3, false);
    for (int k = 0; k < 3; k++) {
        cr_assert(chosen[k] >= 0 && chosen[k] < 4);
        cr_assert(k == 0 || chosen[k] != chosen[k - 1]);
    }
    cr_assert_neq(chosen[0], chosen[2]);
}

/* What a row adds to a loss: dw . weights + balance counts . probs, for the experts that were
 * chosen. */
static double loss_of(const struct router_forward *a, const struct router_backward *b,
                      const double *scores, int64_t row)
{
    double probs[EXPERTS_MAX], sum = 0, loss = 0;
    const int32_t *chosen = a->chosen + row * a->per_row;

    softmax(probs, scores, a->experts);
    for (int k = 0; k < a->per_row; k++)
        sum += probs[chosen[k]];
    for (int k = 0; k < a->per_row; k++)
        loss += (double)b->dweights[row * a->per_row + k] * probs[chosen[k]] /
                (a->is_normalized ? sum : 1);
    for (int e = 0; e < a->experts && b->counts; e++)
        loss += (double)b->balance * probs[e] *
                (double)b->counts[row / b->rows_per_sequence * 2 * a->experts + e];
    return loss;
}

static void check_slopes(const struct router_forward *a, const struct router_backward *b,
                         const float *logits)
{
    float *got = as_floats(b->type, b->dlogits, a->rows * a->experts);

    for (int64_t row = 0; row < a->rows; row++)
        for (int e = 0; e < a->experts; e++) {
            double scores[EXPERTS_MAX], h = 1e-5, slope;

            for (int k = 0; k < a->experts; k++)
                scores[k] = (double)logits[row * a->experts + k];
            scores[e] += h;
            slope = loss_of(a, b, scores, row);
            scores[e] -= 2 * h;
            slope = (slope - loss_of(a, b, scores, row)) / (2 * h);
            assert_near(got[row * a->experts + e], slope,
                        4 * epsilon(b->type) * (1 + fabs(slope)) + 1e-6, "dlogits");
        }
    free(got);
}

Test(router, gradients_are_slopes)
{
    struct rng r = rng_start("router/gradients");

    for (int i = 0; i < 60; i++) {
        float weights[ROWS_MAX * EXPERTS_MAX], out[ROWS_MAX * EXPERTS_MAX];
        int32_t chosen[ROWS_MAX * EXPERTS_MAX];
        float *logits = random_floats(&r, ROWS_MAX * EXPERTS_MAX, 2);
        float *dweights = random_floats(&r, ROWS_MAX * EXPERTS_MAX, 1);
        float *counts = random_floats(&r, 2 * ROWS_MAX * EXPERTS_MAX, 3), *probs;
        struct router_forward a = random_router(&r, NULL, chosen, weights);
        struct router_backward b = { .dlogits = out, .type = i & 1 ? DTYPE_BF16 : DTYPE_F32 };

        probs = a.probs = filled_floats(a.rows * a.experts, 0);
        memcpy(probs, logits, (size_t)(a.rows * a.experts) * sizeof *probs);
        kernels_cpu.router_forward(kernels_on(), &a);
        b.dweights = dweights;
        b.probs = probs;
        b.weights = weights;
        b.chosen = chosen;
        b.rows = a.rows;
        b.experts = a.experts;
        b.per_row = a.per_row;
        b.is_normalized = a.is_normalized;
        b.counts = i & 2 ? counts : NULL;
        b.rows_per_sequence = rng_int(&r, 1, a.rows);
        b.balance = 0.3f;
        kernels_cpu.router_backward(kernels_on(), &b);
        check_slopes(&a, &b, logits);
        free(logits);
        free(dweights);
        free(counts);
        free(probs);
    }
}

Test(router, the_loss_is_the_product_of_both_halves_of_the_load)
{
    float probs[3][2] = { { 0.75f, 0.25f }, { 0.5f, 0.5f }, { 0.125f, 0.875f } };
    int32_t chosen[3] = { 0, 0, 1 };
    float load[2][2][2] = { { { 0 } } };
    double total = 1;

    for (int i = 0; i < 2; i++) /* two layers */
        RUN(router_load, router_load, load[0][0], probs[0], chosen, 3, 2, 2, 1);
    cr_assert(load[0][0][0] == 4 && load[0][0][1] == 0 && load[1][0][0] == 0 && load[1][0][1] == 2);
    cr_assert(load[0][1][0] == 2.5f && load[0][1][1] == 1.5f);
    cr_assert(load[1][1][0] == 0.25f && load[1][1][1] == 1.75f);
    RUN(router_balance, router_balance, &total, load[0][0], 2, 2, 0.5);
    assert_near(total, 1 + 0.5 * (4 * 2.5 + 2 * 1.75), 1e-12, "total");
}
