/*
 * tests/unit/tiny_ckpt.h - a checkpoint of a tiny Llama with its config.json, at any layout.
 */
#ifndef TESTS_UNIT_TINY_CKPT_H
#define TESTS_UNIT_TINY_CKPT_H

#include "layout/model_config.h"
#include "tests/unit/fixture.h"

/* 8 heads, 4 KV heads, 2 layers: tp1, tp2, tp4, tp8 and pp2 divide it. */
static const char tiny_config[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_act\": "
    "\"silu\", \"vocab_size\": 250, \"hidden_size\": 64, \"intermediate_size\": 96, "
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 8, \"num_key_value_heads\": 4, "
    "\"head_dim\": 8, \"max_position_embeddings\": 64, \"rms_norm_eps\": 1e-05, \"rope_theta\": "
    "10000.0, \"tie_word_embeddings\": false, \"attention_bias\": false, \"mlp_bias\": false}\n";

/* The layout of the training state in this dtype. */
static inline struct layout tiny_layout(const char *spec_text, enum dtype dtype,
                                        struct arena *arena)
{
    struct tp_err err = { 0 };
    struct tensor *tensors;
    struct model model;
    struct layout l;
    struct spec spec;
    int n;

    cr_assert_eq(
        model_config_parse(&model, tiny_config, strlen(tiny_config), "tiny config", arena, &err),
        TP_OK, "%s", err.msg);
    cr_assert_eq(spec_parse(&spec, spec_text, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(model_state(&tensors, &n, &model, dtype, arena, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(layout_make(&l, &spec, model.layers, tensors, n, arena, &err), TP_OK, "%s",
                 err.msg);
    return l;
}

/* Write ROOT/step-N: fixture_bits of the seed, trained in bf16 (with fp32 masters) or fp32. */
static inline void tiny_ckpt(const char *root, const char *spec, int64_t step, uint64_t seed,
                             enum dtype dtype)
{
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct layout l = tiny_layout(spec, dtype, &arena);

    cr_assert_eq(fixture_checkpoint(root, step, &l, tiny_config, seed, false, &err), TP_OK, "%s",
                 err.msg);
    arena_free(&arena);
}

#endif
