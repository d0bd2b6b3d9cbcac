/* tests/unit/layout_model_tensors.c - a model has the tensors that transformers gives it, cut as
 * Megatron-LM cuts them. */
#include "layout/model_tensors.h"

#include <criterion/criterion.h>
#include <string.h>

#include "layout/layout.h"
#include "tests/unit/random_model.h"

static int64_t elements(const struct tensor *t, int n)
{
    int64_t sum = 0;

    for (int i = 0; i < n; i++) {
        struct box b = box_whole(t[i].ndim, t[i].shape);

        sum += box_elements(&b);
    }
    return sum;
}

/* transformers counts 217,664 parameters for this configuration. */
Test(model_tensors, llama_has_as_many_parameters_as_in_transformers)
{
    struct model m = { .heads = 4,
                       .kv_heads = 2,
                       .head_dim = 16,
                       .hidden = 64,
                       .ffn = 176,
                       .vocab = 256,
                       .layers = 4 };
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct tensor *t;
    int n;

    cr_assert_eq(model_params(&t, &n, &m, DTYPE_F32, &arena, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(elements(t, n), 217664);
    arena_free(&arena);
}

/* transformers writes these names, and 220,544 parameters, for this configuration. */
Test(model_tensors, gpt2_has_the_names_and_shapes_of_transformers)
{
    static const struct {
        const char *name;
        int64_t shape[2];
    } want[] = {
        { "transformer.wte.weight", { 256, 64 } },
        { "transformer.wpe.weight", { 64, 64 } },
        { "transformer.h.0.ln_1.weight", { 64, 0 } },
        { "transformer.h.0.ln_1.bias", { 64, 0 } },
        { "transformer.h.0.attn.c_attn.weight", { 64, 192 } },
        { "transformer.h.0.attn.c_attn.bias", { 192, 0 } },
        { "transformer.h.0.attn.c_proj.weight", { 64, 64 } },
        { "transformer.h.0.attn.c_proj.bias", { 64, 0 } },
        { "transformer.h.0.ln_2.weight", { 64, 0 } },
        { "transformer.h.0.ln_2.bias", { 64, 0 } },
        { "transformer.h.0.mlp.c_fc.weight", { 64, 256 } },
        { "transformer.h.0.mlp.c_fc.bias", { 256, 0 } },
        { "transformer.h.0.mlp.c_proj.weight", { 256, 64 } },
        { "transformer.h.0.mlp.c_proj.bias", { 64, 0 } },
    };
    struct model m = { .family = MODEL_GPT2,
                       .heads = 4,
                       .kv_heads = 4,
                       .head_dim = 16,
                       .hidden = 64,
                       .ffn = 256,
                       .vocab = 256,
                       .layers = 4,
                       .max_positions = 64,
                       .tied = true };
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct tensor *t;
    int n;

    cr_assert_eq(model_params(&t, &n, &m, DTYPE_F32, &arena, &err), TP_OK, "%s", err.msg);
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        cr_assert_str_eq(t[i].name, want[i].name);
        cr_assert(t[i].shape[0] == want[i].shape[0] && t[i].shape[1] == want[i].shape[1]);
    }
    cr_assert_str_eq(t[n - 2].name, "transformer.ln_f.weight");
    cr_assert_str_eq(t[n - 1].name, "transformer.ln_f.bias");
    cr_assert_eq(elements(t, n), 220544);
    arena_free(&arena);
}

/* c_attn is cut by column, each third by itself and its bias likewise; c_proj by row. */
Test(model_tensors, gpt2_is_cut_by_outputs_then_by_inputs)
{
    struct model m = small_gpt2();
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct spec s = spec_default();
    struct tensor *t;
    struct box b[TENSOR_BOXES_MAX];
    int n;

    s.tp = 4;
    cr_assert_eq(model_params(&t, &n, &m, DTYPE_F32, &arena, &err), TP_OK);
    for (int i = 0; i < n; i++) {
        int boxes = layout_tp_boxes(&t[i], &s, 1, b);

        if (t[i].role == ROLE_QKV || t[i].role == ROLE_QKV_BIAS) {
            int dim = t[i].role == ROLE_QKV ? 1 : 0;

            cr_assert_eq(boxes, 3);
            for (int k = 0; k < 3; k++)
                cr_assert(b[k].lo[dim] == 128 * k + 32 && b[k].len[dim] == 32);
        } else if (t[i].role == ROLE_UP || t[i].role == ROLE_UP_BIAS) {
            int dim = t[i].role == ROLE_UP ? 1 : 0;

            cr_assert(boxes == 1 && b[0].lo[dim] == 128 && b[0].len[dim] == 128);
        } else if (t[i].role == ROLE_OUT || t[i].role == ROLE_DOWN) {
            cr_assert(boxes == 1 && b[0].len[0] == t[i].shape[0] / 4 && b[0].len[1] == 128);
        } else if (t[i].role != ROLE_EMBEDDING) {
            struct box whole = box_whole(t[i].ndim, t[i].shape);

            cr_assert(boxes == 1 && box_equal(&b[0], &whole), "%s", t[i].name);
        }
    }
    arena_free(&arena);
}

/* Training in bf16 saves the parameters and three fp32 groups of the same shapes. */
Test(model_tensors, state_has_every_parameter_once_in_each_group)
{
    static const char *const groups[] = { "param", "master", "exp_avg", "exp_avg_sq" };
    struct rng r = rng_start("model_tensors/state");

    for (int i = 0; i < 100; i++) {
        struct model m = random_model(&r);
        struct arena arena = { 0 };
        struct tp_err err = { 0 };
        struct tensor *params, *bf16, *f32;
        int n, n_bf16, n_f32;

        cr_assert_eq(model_params(&params, &n, &m, DTYPE_BF16, &arena, &err), TP_OK);
        cr_assert_eq(model_state(&bf16, &n_bf16, &m, DTYPE_BF16, &arena, &err), TP_OK);
        cr_assert_eq(model_state(&f32, &n_f32, &m, DTYPE_F32, &arena, &err), TP_OK);
        cr_assert(n_bf16 == 4 * n && n_f32 == 3 * n);
        for (int k = 0; k < n_bf16; k++) {
            cr_assert_str_eq(bf16[k].name, params[k % n].name);
            cr_assert_str_eq(bf16[k].group, groups[k / n]);
            cr_assert_eq(bf16[k].dtype, k < n ? DTYPE_BF16 : DTYPE_F32);
        }
        for (int k = 0; k < n_f32; k++)
            cr_assert(strcmp(f32[k].group, "master") != 0);
        arena_free(&arena);
    }
}

/* The box of tensor `role` that rank 1 of tp2 has in block `k`: rows `lo` to `lo + len`. */
static void expect_rows(const struct tensor *t, int n, enum tensor_role role, int k, int64_t lo,
                        int64_t len)
{
    struct spec s = spec_default();
    struct box b[TENSOR_BOXES_MAX];
    int i = 0;

    s.tp = 2;
    while (i < n && t[i].role != role)
        i++;
    cr_assert(i < n && layout_tp_boxes(&t[i], &s, 1, b) > k, "%s", tensor_role_name(role));
    cr_assert(b[k].lo[0] == lo && b[k].len[0] == len, "%s: block %d is %lld, %lld",
              tensor_role_name(role), k, (long long)b[k].lo[0], (long long)b[k].len[0]);
}

/* 8 heads, 2 KV heads of 16: rank 1 has queries 4 to 7, and the keys and values that they read. */
Test(model_tensors, phi3_is_cut_by_the_groups_of_its_fused_queries)
{
    struct model m = small_llama();
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct tensor *t;
    int n;

    m.family = MODEL_PHI3;
    cr_assert_eq(model_params(&t, &n, &m, DTYPE_F32, &arena, &err), TP_OK, "%s", err.msg);
    expect_rows(t, n, ROLE_QKV, 0, 64, 64);
    expect_rows(t, n, ROLE_QKV, 1, 128 + 16, 16);
    expect_rows(t, n, ROLE_QKV, 2, 160 + 16, 16);
    expect_rows(t, n, ROLE_GATE_UP, 0, 172, 172);
    expect_rows(t, n, ROLE_GATE_UP, 1, 344 + 172, 172);
    arena_free(&arena);
}

/* The rows of a head's query, key and value follow one another. */
Test(model_tensors, gpt_neox_is_cut_head_by_head)
{
    struct model m = small_gpt2();
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct tensor *t;
    int n;

    m.family = MODEL_GPT_NEOX;
    m.qkv_bias = true;
    cr_assert_eq(model_params(&t, &n, &m, DTYPE_F32, &arena, &err), TP_OK, "%s", err.msg);
    expect_rows(t, n, ROLE_QKV, 0, 192, 192);
    expect_rows(t, n, ROLE_QKV_BIAS, 0, 192, 192);
    arena_free(&arena);
}

Test(model_tensors, mixtral_has_each_expert_of_each_layer)
{
    struct model m = small_llama();
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct tensor *t;
    int n, found = 0;

    m.family = MODEL_MIXTRAL;
    m.experts = 12;
    cr_assert_eq(model_params(&t, &n, &m, DTYPE_F32, &arena, &err), TP_OK, "%s", err.msg);
    for (int i = 0; i < n; i++)
        found += strcmp(t[i].name, "model.layers.5.block_sparse_moe.experts.11.w3.weight") == 0 &&
                 t[i].layer == 5 && t[i].shape[0] == m.ffn;
    cr_assert_eq(found, 1);
    cr_assert_eq(n, 3 + m.layers * (7 + 3 * m.experts));
    expect_rows(t, n, ROLE_EXPERT_UP, 0, 172, 172);
    arena_free(&arena);
}
