/* tests/unit/layout_model_flops.c - the formula agrees with a sum over the model's matrices. */
#include "layout/model_flops.h"

#include <criterion/criterion.h>

#include "tests/unit/random_model.h"

Test(model_flops, params_are_the_matrices_of_the_layers_and_the_head)
{
    struct rng r = rng_start("model_flops/params");

    for (int i = 0; i < 300; i++) {
        struct model m = random_model(&r);
        struct arena arena = { 0 };
        struct tp_err err = { 0 };
        struct tensor *t;
        int64_t sum = m.hidden * m.vocab; /* the head, also when it is tied */
        int n;

        cr_assert_eq(model_params(&t, &n, &m, DTYPE_F32, &arena, &err), TP_OK);
        for (int k = 0; k < n; k++)
            if (t[k].layer >= 0 && t[k].ndim == 2)
                sum += t[k].shape[0] * t[k].shape[1];
        cr_assert_eq(model_flops_params(&m), sum);
        arena_free(&arena);
    }
}

/* GPT-3's 175 billion parameters at 2048 tokens: 1.05e12 per token, and 0.06e12 for attention. */
Test(model_flops, a_step_costs_six_operations_per_parameter_plus_attention)
{
    struct model m = { .family = MODEL_GPT2,
                       .layers = 96,
                       .heads = 96,
                       .kv_heads = 96,
                       .head_dim = 128,
                       .hidden = 12288,
                       .ffn = 49152,
                       .vocab = 50257 };
    double params = (double)model_flops_params(&m), flops = model_flops_step(&m, 1, 2048);

    cr_expect(params > 174e9 && params < 175e9, "%g", params);
    cr_expect_float_eq(flops - 6 * params, 12.0 * 96 * 12288 * 2048, 1.0);
    cr_expect_float_eq(model_flops_step(&m, 1000, 2048), 1000 * flops, 1e4);
}
