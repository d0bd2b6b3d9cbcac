/* tests/unit/layout_model_config.c - config.json is read as transformers reads it, or refused. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "layout/model_config.h"

#define BASE                                                                                 \
    "\"architectures\": [\"LlamaForCausalLM\"], \"vocab_size\": 260, \"hidden_size\": 128, " \
    "\"intermediate_size\": 344, \"num_hidden_layers\": 6, \"num_attention_heads\": 8"

static tp_status parse(struct model *m, const char *text, struct arena *arena, struct tp_err *err)
{
    return model_config_parse(m, text, strlen(text), "config.json", arena, err);
}

/* A config with these extra keys is refused, and the message names `named`. */
static void expect_refused(const char *base, const char *extra, const char *named)
{
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct model m;
    char text[1024];

    snprintf(text, sizeof text, "{%s%s}", base, extra);
    cr_expect_eq(parse(&m, text, &arena, &err), TP_E_USAGE, "%s", extra);
    cr_expect(strstr(err.msg, named), "%s", err.msg);
    arena_free(&arena);
}

Test(model_config, reads_old_and_new_rotary_fields)
{
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct model m;

    cr_assert_eq(parse(&m, "{" BASE ", \"rope_theta\": 5e5}", &arena, &err), TP_OK, "%s", err.msg);
    cr_assert(m.rope_theta == 5e5 && m.kv_heads == 8 && m.head_dim == 16 && !m.tied);
    cr_assert_eq(parse(&m,
                       "{" BASE ", \"num_key_value_heads\": 2, \"head_dim\": 32, "
                       "\"tie_word_embeddings\": true, \"rope_parameters\": "
                       "{\"rope_type\": \"default\", \"rope_theta\": 7}}",
                       &arena, &err),
                 TP_OK, "%s", err.msg);
    cr_assert(m.rope_theta == 7 && m.kv_heads == 2 && m.head_dim == 32 && m.tied);
    arena_free(&arena);
}

Test(model_config, refuses_unsupported_values_by_name)
{
    static const struct {
        const char *extra, *named;
    } bad[] = {
        { ", \"attention_bias\": true", "attention_bias" },
        { ", \"hidden_act\": \"gelu\"", "hidden_act" },
        { ", \"num_key_value_heads\": 3", "num_key_value_heads" },
        { ", \"num_key_value_heads\": 0", "num_key_value_heads" },
        { ", \"head_dim\": -4", "head_dim" },
        { ", \"head_dim\": 7", "head_dim" },
        { ", \"rope_theta\": \"x\"", "rope_theta" },
        { ", \"rms_norm_eps\": -1", "rms_norm_eps" },
        { ", \"rope_scaling\": {\"rope_type\": \"yarn\"}", "rope_scaling" },
        { ", \"attention_dropout\": 0.1", "attention_dropout" },
        { ", \"tie_word_embeddings\": 3", "tie_word_embeddings" },
        { ", \"vocab_size\": 1", "duplicate" },
    };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        expect_refused(BASE, bad[i].extra, bad[i].named);
}

Test(model_config, refuses_missing_and_absurd_fields)
{
    static const char *const bad[] = {
        "",
        "[]",
        "{}",
        "{\"architectures\": [\"BertModel\"]}",
        "{\"architectures\": [\"LlamaForCausalLM\"], \"vocab_size\": 1e99}",
        "{\"model_type\": \"llama\", \"vocab_size\": 99999999999999999999}",
        "{\"model_type\": \"llama\", \"vocab_size\": 8, \"hidden_size\": 0}",
    };
    struct arena arena = { 0 };
    struct model m;

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct tp_err err = { 0 };

        cr_expect_eq(parse(&m, bad[i], &arena, &err), TP_E_USAGE, "%s", bad[i]);
        cr_expect(strstr(err.msg, "config.json"), "%s", err.msg);
    }
    arena_free(&arena);
}

#define GPT2 "\"architectures\": [\"GPT2LMHeadModel\"], \"vocab_size\": 256"

Test(model_config, reads_gpt2_with_the_defaults_of_transformers)
{
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct model m;

    cr_assert_eq(parse(&m, "{" GPT2 "}", &arena, &err), TP_OK, "%s", err.msg);
    cr_assert(m.family == MODEL_GPT2 && m.hidden == 768 && m.layers == 12 && m.heads == 12 &&
              m.kv_heads == 12 && m.head_dim == 64 && m.ffn == 3072 && m.max_positions == 1024 &&
              m.norm_eps == 1e-5 && m.tied && m.dropout == 0.1);
    cr_assert_eq(parse(&m,
                       "{" GPT2
                       ", \"n_embd\": 64, \"n_head\": 4, \"n_layer\": 3, \"n_inner\": 100, "
                       "\"attn_pdrop\": 0, \"embd_pdrop\": 0.0, \"resid_pdrop\": 0.0}",
                       &arena, &err),
                 TP_OK, "%s", err.msg);
    cr_assert(m.head_dim == 16 && m.ffn == 100 && m.dropout == 0);
    arena_free(&arena);
}

Test(model_config, refuses_unsupported_values_with_gpt2_by_name)
{
    static const struct {
        const char *extra, *named;
    } bad[] = {
        { ", \"activation_function\": \"relu\"", "activation_function" },
        { ", \"n_head\": 5", "n_head" },
        { ", \"tie_word_embeddings\": false", "tie_word_embeddings" },
        { ", \"scale_attn_by_inverse_layer_idx\": true", "scale_attn_by_inverse_layer_idx" },
        { ", \"scale_attn_weights\": false", "scale_attn_weights" },
        { ", \"attn_pdrop\": 2", "attn_pdrop" },
        { ", \"n_inner\": -1", "n_inner" },
        { ", \"layer_norm_epsilon\": \"x\"", "layer_norm_epsilon" },
    };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        expect_refused(GPT2, bad[i].extra, bad[i].named);
}
