/* tests/unit/layout_model_config.c - config.json is read as transformers reads it, or refused.
 * covers: layout/config_key layout/rope_config */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "core/json_scan.h"
#include "layout/family.h"
#include "layout/model_config.h"

#define BASE                                                                                 \
    "\"architectures\": [\"LlamaForCausalLM\"], \"vocab_size\": 260, \"hidden_size\": 128, " \
    "\"intermediate_size\": 344, \"num_hidden_layers\": 6, \"num_attention_heads\": 8"

static tp_status parse(struct model *m, const char *text, struct arena *arena, struct tp_err *err)
{
    return model_config_parse(m, text, strlen(text), "config.json", arena, err);
}

/* The model of a config with these extra keys. */
static struct model parse_with(const char *base, const char *extra, struct arena *arena)
{
    struct tp_err err = { 0 };
    struct model m;
    char text[1024];

    snprintf(text, sizeof text, "{%s%s}", base, extra);
    cr_assert_eq(parse(&m, text, arena, &err), TP_OK, "%s: %s", extra, err.msg);
    return m;
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
        { ", \"attention_bias\": 3", "attention_bias" },
        { ", \"num_key_value_heads\": 3", "num_key_value_heads" },
        { ", \"num_key_value_heads\": 0", "num_key_value_heads" },
        { ", \"head_dim\": -4", "head_dim" },
        { ", \"head_dim\": 7", "head_dim" },
        { ", \"rope_theta\": \"x\"", "rope_theta" },
        { ", \"rms_norm_eps\": -1", "rms_norm_eps" },
        { ", \"rope_scaling\": {\"rope_type\": \"yarn\"}", "rope_scaling.factor" },
        { ", \"rope_scaling\": 3", "rope_scaling" },
        { ", \"rope_parameters\": {\"rope_type\": 4}", "rope_parameters.rope_type" },
        { ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": -2}", "rope_scaling.factor" },
        { ", \"rope_scaling\": {\"type\": \"llama3\", \"factor\": 8}", "low_freq_factor" },
        { ", \"rope_scaling\": {\"type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, "
          "\"high_freq_factor\": 4}",
          "high_freq_factor" },
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

/* A manifest has the text as a JSON string, in which a line end takes two bytes. */
Test(model_config, refuses_what_a_manifest_cannot_hold)
{
    static const size_t fits = JSON_VALUE_BYTES_MAX / 2 - 1024;
    static char text[JSON_VALUE_BYTES_MAX];
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct model m;

    memset(text, '\n', JSON_VALUE_BYTES_MAX / 2);
    memcpy(text + fits, "{" BASE "}", sizeof "{" BASE "}");
    cr_expect_eq(parse(&m, text, &arena, &err), TP_OK, "%s", err.msg);
    memset(text + fits, '\n', 1024);
    memcpy(text + fits + 1024, "{" BASE "}", sizeof "{" BASE "}");
    cr_expect_eq(parse(&m, text, &arena, &err), TP_E_USAGE);
    cr_expect(strstr(err.msg, "4 MiB"), "%s", err.msg);
    arena_free(&arena);
}

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
        { ", \"n_head\": 5", "n_head" },
        { ", \"tie_word_embeddings\": false", "tie_word_embeddings" },
        { ", \"add_cross_attention\": true", "add_cross_attention" },
        { ", \"attn_pdrop\": 2", "attn_pdrop" },
        { ", \"n_inner\": -1", "n_inner" },
        { ", \"layer_norm_epsilon\": \"x\"", "layer_norm_epsilon" },
    };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        expect_refused(GPT2, bad[i].extra, bad[i].named);
}

/* What changes no tensor can be moved; the model says what tp-train does not compute. */
Test(model_config, keeps_what_cannot_be_trained_by_name)
{
    static const struct {
        const char *base, *extra, *named;
    } cases[] = {
        { BASE, ", \"model_type\": \"mistral\"", "model_type" },
        { BASE, ", \"hidden_act\": \"gelu\"", "hidden_act" },
        { BASE, ", \"attention_dropout\": 0.1", "attention_dropout" },
        { BASE, ", \"partial_rotary_factor\": 0.5", "partial_rotary_factor" },
        { BASE, ", \"rope_scaling\": {\"type\": \"longrope\", \"factor\": 2}", "longrope" },
        { BASE, ", \"rope_scaling\": {\"type\": \"yarn\", \"short_factor\": [1]}", "longrope" },
        { GPT2, ", \"activation_function\": \"relu\"", "activation_function" },
        { GPT2, ", \"scale_attn_weights\": false", "scale_attn_weights" },
        { GPT2, ", \"scale_attn_by_inverse_layer_idx\": true", "scale_attn_by_inverse_layer_idx" },
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct arena arena = { 0 };
        struct model m = parse_with(cases[i].base, cases[i].extra, &arena);

        cr_assert(m.untrained && strstr(m.untrained, cases[i].named), "%s", cases[i].extra);
        cr_assert_null(parse_with(cases[i].base, "", &arena).untrained);
        arena_free(&arena);
    }
}

/* In rope_parameters, at the top level, or not at all: the elements of a head of 24 that rotate. */
Test(model_config, reads_the_part_of_a_head_that_is_rotated)
{
    static const struct {
        const char *extra;
        int64_t rotary_dim;
        bool is_trained;
    } cases[] = {
        { "", 24, true },
        { ", \"partial_rotary_factor\": 0.75", 18, true },
        { ", \"partial_rotary_factor\": 0.7", 16, true },
        { ", \"partial_rotary_factor\": 0.8", 19, false },
        { ", \"partial_rotary_factor\": 0.05", 1, false },
        { ", \"partial_rotary_factor\": 2", 24, false },
        { ", \"rope_parameters\": {\"partial_rotary_factor\": 0.5}", 12, true },
        { ", \"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 2}, "
          "\"partial_rotary_factor\": 0.5",
          12, true },
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct arena arena = { 0 };
        struct model m = parse_with("\"architectures\": [\"Phi3ForCausalLM\"], \"vocab_size\": 9, "
                                    "\"hidden_size\": 96, \"intermediate_size\": 8, "
                                    "\"num_hidden_layers\": 1, \"num_attention_heads\": 4",
                                    cases[i].extra, &arena);

        cr_expect_eq(m.rotary_dim, cases[i].rotary_dim, "%s: %lld", cases[i].extra,
                     (long long)m.rotary_dim);
        cr_expect_eq(!m.untrained, cases[i].is_trained, "%s", cases[i].extra);
        arena_free(&arena);
    }
}

Test(model_config, reads_the_factors_of_granite)
{
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct model m;
    static const char granite[] = "{\"architectures\": [\"GraniteForCausalLM\"], "
                                  "\"vocab_size\": 9, \"hidden_size\": 8, "
                                  "\"intermediate_size\": 8, \"num_hidden_layers\": 1, "
                                  "\"num_attention_heads\": 2%s}";
    char text[512];

    snprintf(text, sizeof text, granite, "");
    cr_assert_eq(parse(&m, text, &arena, &err), TP_OK, "%s", err.msg);
    cr_expect(m.embedding_multiplier == 1 && m.attention_multiplier == 1 &&
              m.residual_multiplier == 1 && m.logits_scaling == 1 && m.dropout == 0);
    snprintf(text, sizeof text, granite,
             ", \"embedding_multiplier\": 12, \"attention_multiplier\": 0.015625, "
             "\"residual_multiplier\": 0.22, \"logits_scaling\": 8, \"attention_dropout\": 0.1");
    cr_assert_eq(parse(&m, text, &arena, &err), TP_OK, "%s", err.msg);
    cr_expect(m.embedding_multiplier == 12 && m.attention_multiplier == 0.015625 &&
              m.residual_multiplier == 0.22 && m.logits_scaling == 8 && m.dropout == 0.1);
    cr_expect_null(m.untrained);
    snprintf(text, sizeof text, granite, ", \"residual_multiplier\": 0");
    cr_expect_eq(parse(&m, text, &arena, &err), TP_E_USAGE);
    cr_expect(strstr(err.msg, "residual_multiplier"), "%s", err.msg);
    arena_free(&arena);
}

/* rope_scaling, as older versions wrote it, takes precedence, as in transformers. */
Test(model_config, reads_how_the_rotary_embedding_is_scaled)
{
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct model m;

    cr_assert_eq(parse(&m,
                       "{" BASE ", \"rope_theta\": 5e5, \"rope_scaling\": {\"rope_type\": "
                       "\"llama3\", \"factor\": 8, \"low_freq_factor\": 1, "
                       "\"high_freq_factor\": 4, \"original_max_position_embeddings\": 8192}}",
                       &arena, &err),
                 TP_OK, "%s", err.msg);
    cr_assert(m.rope_scaling.type == ROPE_SCALING_LLAMA3 && m.rope_theta == 5e5 &&
              m.rope_scaling.factor == 8 && m.rope_scaling.low_freq_factor == 1 &&
              m.rope_scaling.high_freq_factor == 4 && m.rope_scaling.original_positions == 8192);
    cr_assert_eq(parse(&m,
                       "{" BASE ", \"max_position_embeddings\": 512, \"rope_parameters\": "
                       "{\"rope_type\": \"yarn\", \"rope_theta\": 7, \"factor\": 4}}",
                       &arena, &err),
                 TP_OK, "%s", err.msg);
    cr_assert(m.rope_scaling.type == ROPE_SCALING_YARN && m.rope_theta == 7 &&
              m.rope_scaling.original_positions == 512 && m.rope_scaling.beta_fast == 32 &&
              m.rope_scaling.beta_slow == 1 && m.rope_scaling.truncate && !m.untrained);
    arena_free(&arena);
}

#define PHI3                                                                                     \
    "{\"architectures\": [\"Phi3ForCausalLM\"], \"vocab_size\": 9, \"hidden_size\": 8, "         \
    "\"intermediate_size\": 8, \"num_hidden_layers\": 1, \"num_attention_heads\": 2, "           \
    "\"max_position_embeddings\": 8192, \"rope_scaling\": {\"type\": \"su\", \"short_factor\": " \
    "[1, 2], \"long_factor\": "

/* As transformers, where Phi-3 has 4096 positions at first unless config.json says it. */
Test(model_config, reads_longrope)
{
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    static const char *const bad[] = { "[1]}}", "[1, 0]}}", "[1, \"2\"]}}", "2}}", "[1, 2, 3]}}" };
    struct model m;
    const struct rope_scaling *s = &m.rope_scaling;

    cr_assert_eq(parse(&m, PHI3 "[3, 4.5]}}", &arena, &err), TP_OK, "%s", err.msg);
    cr_assert_null(m.untrained, "%s", m.untrained);
    cr_assert(s->type == ROPE_SCALING_LONGROPE && s->original_positions == 4096 && s->factor == 2);
    cr_assert(s->n_short == 2 && s->short_factor[1] == 2 && s->long_factor[1] == 4.5);
    cr_assert_eq(parse(&m, PHI3 "[3, 4], \"factor\": 7}, \"original_max_position_embeddings\": 64}",
                       &arena, &err),
                 TP_OK, "%s", err.msg);
    cr_assert(s->original_positions == 64 && s->factor == 7 && !m.untrained);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[1024];

        snprintf(text, sizeof text, "%s%s", PHI3, bad[i]);
        cr_assert_eq(parse(&m, text, &arena, &err), TP_OK, "%s", err.msg);
        cr_expect(m.untrained && strstr(m.untrained, "long_factor of 2 numbers"), "%s", bad[i]);
    }
    cr_assert_eq(parse(&m, PHI3 "[3, 4]}, \"original_max_position_embeddings\": 1}", &arena, &err),
                 TP_OK, "%s", err.msg);
    cr_assert(m.untrained && strstr(m.untrained, "original_max_position_embeddings 1"));
    arena_free(&arena);
}

/* In Mistral's config null means no window, and an absent key 4096. */
Test(model_config, tells_null_from_an_absent_window)
{
    static const struct {
        const char *extra;
        int64_t window;
    } cases[] = { { "", 4096 },
                  { ", \"sliding_window\": null", 0 },
                  { ", \"sliding_window\": 8", 8 } };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct arena arena = { 0 };
        struct model m = parse_with("\"model_type\": \"mistral\", \"vocab_size\": 260, "
                                    "\"hidden_size\": 128, \"intermediate_size\": 344, "
                                    "\"num_hidden_layers\": 6, \"num_attention_heads\": 8, "
                                    "\"num_key_value_heads\": 2",
                                    cases[i].extra, &arena);

        cr_assert_eq(m.sliding_window, cases[i].window);
        arena_free(&arena);
    }
}

/* OPT-350m has an embedding of another width, and two more tensors. */
Test(model_config, refuses_an_embedding_of_another_width)
{
    expect_refused("\"model_type\": \"opt\", \"vocab_size\": 260, \"hidden_size\": 128, "
                   "\"ffn_dim\": 344, \"num_hidden_layers\": 6, \"num_attention_heads\": 8, "
                   "\"max_position_embeddings\": 64",
                   ", \"word_embed_proj_dim\": 64", "word_embed_proj_dim");
}

#define GEMMA                                                                            \
    "\"vocab_size\": 260, \"hidden_size\": 128, \"intermediate_size\": 344, "            \
    "\"num_hidden_layers\": 4, \"num_attention_heads\": 8, \"num_key_value_heads\": 2, " \
    "\"head_dim\": 16"
#define GEMMA2  "\"model_type\": \"gemma2\", " GEMMA
#define GEMMA3  "\"model_type\": \"gemma3_text\", " GEMMA
#define MISTRAL "\"model_type\": \"mistral\", " GEMMA

/* Which layers have the window, as text: w or -. */
static void expect_windows(const char *text, const char *windows)
{
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct model m;

    cr_assert_eq(parse(&m, text, &arena, &err), TP_OK, "%s", err.msg);
    for (int i = 0; i < m.layers; i++)
        cr_expect_eq(family_layer_has_window(&m, i), windows[i] == 'w', "%s: layer %d", text, i);
    arena_free(&arena);
}

Test(model_config, finds_the_layers_with_a_window)
{
    expect_windows("{" GEMMA2 "}", "w-w-");
    expect_windows("{" GEMMA2 ", \"sliding_window_pattern\": 3}", "w-w-");
    expect_windows("{" GEMMA2 ", \"sliding_window\": null}", "----");
    expect_windows("{" GEMMA3 "}", "wwww");
    expect_windows("{" GEMMA3 ", \"sliding_window_pattern\": 3}", "ww-w");
    expect_windows("{" GEMMA3 ", \"layer_types\": [\"full_attention\", \"sliding_attention\", "
                   "\"sliding_attention\", \"full_attention\"], \"sliding_window_pattern\": 2}",
                   "-ww-");
    expect_windows("{" MISTRAL "}", "wwww");
    expect_windows("{" MISTRAL ", \"layer_types\": [\"full_attention\", \"sliding_attention\", "
                   "\"sliding_attention\", \"full_attention\"], \"sliding_window\": 8}",
                   "-ww-");
    expect_refused(GEMMA2, ", \"layer_types\": [\"full_attention\"]", "layer_types");
    expect_refused(GEMMA2,
                   ", \"layer_types\": [\"full_attention\", \"sliding_attention\", 3, "
                   "\"full_attention\"]",
                   "layer_types");
    expect_refused(GEMMA3, ", \"sliding_window_pattern\": 0", "sliding_window_pattern");
}

#define OLMO3   "\"model_type\": \"olmo3\", " GEMMA
#define SMOLLM3 "\"model_type\": \"smollm3\", " GEMMA

/* A letter for each layer: upper case with a rotary embedding, w with a window, n without one. */
static void expect_layers(const char *text, const char *layers)
{
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct model m;
    char found[8] = "";

    cr_assert_eq(parse(&m, text, &arena, &err), TP_OK, "%s", err.msg);
    for (int i = 0; i < m.layers && i < 7; i++) {
        const char *letters = family_layer_has_rope(&m, i) ? "NW" : "nw";

        found[i] = letters[family_layer_has_window(&m, i)];
    }
    cr_expect(strcmp(found, layers) == 0 && !m.untrained, "%s: %s", text, found);
    arena_free(&arena);
}

/* As transformers' SmolLM3Config says. */
Test(model_config, finds_the_layers_without_a_rotary_embedding)
{
    expect_layers("{" SMOLLM3 "}", "NNNn");
    expect_layers("{" SMOLLM3 ", \"no_rope_layer_interval\": 2}", "NnNn");
    expect_layers("{" SMOLLM3 ", \"no_rope_layers\": null, \"no_rope_layer_interval\": 3}", "NNnN");
    expect_layers("{" SMOLLM3 ", \"no_rope_layers\": [0, true, false, 1, 0, 7], "
                  "\"no_rope_layer_interval\": 2}",
                  "nNnN");
    expect_layers("{" SMOLLM3 ", \"sliding_window\": 5}", "NNNn");
    expect_layers("{" SMOLLM3 ", \"sliding_window\": 5, \"use_sliding_window\": true}", "NNNw");
    expect_layers("{" SMOLLM3 ", \"sliding_window\": null, \"use_sliding_window\": true}", "NNNn");
    expect_layers("{" SMOLLM3 ", \"sliding_window\": 5, \"no_rope_layer_interval\": 2, "
                  "\"layer_types\": [\"sliding_attention\", \"sliding_attention\", "
                  "\"full_attention\", \"full_attention\"]}",
                  "WwNn");
    expect_refused(SMOLLM3, ", \"no_rope_layers\": [1, 0, 1]", "no_rope_layers");
    expect_refused(SMOLLM3, ", \"no_rope_layers\": [1, 0, 2, 1]", "no_rope_layers");
    expect_refused(SMOLLM3, ", \"no_rope_layers\": [1, 0, \"1\", 1]", "no_rope_layers");
    expect_refused(SMOLLM3, ", \"no_rope_layers\": [1, 0, 1.0, 1]", "no_rope_layers");
    expect_refused(SMOLLM3, ", \"no_rope_layer_interval\": 0", "no_rope_layer_interval");
    expect_windows("{" OLMO3 "}", "www-");
    expect_windows("{" OLMO3 ", \"sliding_window\": null}", "----");
}

static void expect_thetas(const char *text, double full, double local)
{
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct model m;

    cr_assert_eq(parse(&m, text, &arena, &err), TP_OK, "%s", err.msg);
    cr_expect(m.rope_theta == full && m.local_rope_theta == local && !m.untrained, "%s: %g and %g",
              text, m.rope_theta, m.local_rope_theta);
    arena_free(&arena);
}

/* As transformers' Olmo3Config says: in the older form layers share theta; in the newer one those
 * with a window that say none have the default. */
Test(model_config, layers_with_a_window_have_the_theta_of_their_form)
{
    expect_thetas("{" OLMO3 "}", 500000, 500000);
    expect_thetas("{" OLMO3 ", \"rope_theta\": 70}", 70, 70);
    expect_thetas("{" OLMO3 ", \"rope_parameters\": {\"full_attention\": {\"rope_theta\": 70}, "
                  "\"sliding_attention\": {\"rope_theta\": 30}}}",
                  70, 30);
    expect_thetas("{" OLMO3 ", \"rope_parameters\": {\"full_attention\": {\"rope_theta\": 70}}}",
                  70, 500000);
    expect_thetas("{" OLMO3 ", \"rope_parameters\": {\"full_attention\": {\"rope_theta\": 70}, "
                  "\"sliding_attention\": {\"rope_type\": \"default\"}}}",
                  70, 500000);
    expect_thetas("{" OLMO3 ", \"rope_parameters\": {\"sliding_attention\": {\"rope_theta\": 30}}}",
                  500000, 30);
}

/* A cap that is null is none; an absent one has the family's value. */
Test(model_config, reads_caps_and_the_scale_of_attention)
{
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct model m;

    cr_assert_eq(parse(&m, "{" GEMMA2 "}", &arena, &err), TP_OK, "%s", err.msg);
    cr_expect(m.attention_cap == 50 && m.logit_cap == 30 && m.attention_scalar == 256 &&
              m.local_rope_theta == 0 && !m.untrained);
    cr_assert_eq(parse(&m,
                       "{" GEMMA2 ", \"attn_logit_softcapping\": null, "
                       "\"final_logit_softcapping\": 2.5, \"query_pre_attn_scalar\": 9}",
                       &arena, &err),
                 TP_OK, "%s", err.msg);
    cr_expect(m.attention_cap == 0 && m.logit_cap == 2.5 && m.attention_scalar == 9);
    cr_assert_eq(parse(&m, "{" GEMMA3 "}", &arena, &err), TP_OK, "%s", err.msg);
    cr_expect(m.attention_cap == 0 && m.logit_cap == 0 && !m.untrained);
    expect_refused(GEMMA2, ", \"attn_logit_softcapping\": 0", "attn_logit_softcapping");
    expect_refused(GEMMA3, ", \"final_logit_softcapping\": -1", "final_logit_softcapping");
    cr_assert_eq(parse(&m, "{" GEMMA3 ", \"attn_logit_softcapping\": 50}", &arena, &err), TP_OK);
    cr_expect(m.untrained && strstr(m.untrained, "attn_logit_softcapping"));
    arena_free(&arena);
}

/* transformers 5 writes an object for each type of layer, and older versions keys of their own. */
Test(model_config, reads_both_rotary_embeddings)
{
    static const char *const configs[] = {
        "{" GEMMA3 ", \"rope_theta\": 7, \"rope_local_base_freq\": 5, \"rope_scaling\": "
        "{\"rope_type\": \"linear\", \"factor\": 8}}",
        "{" GEMMA3 ", \"rope_parameters\": {\"full_attention\": {\"rope_type\": \"linear\", "
        "\"factor\": 8, \"rope_theta\": 7}, \"sliding_attention\": {\"rope_type\": \"default\", "
        "\"rope_theta\": 5}}}",
    };
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct model m;

    for (int i = 0; i < 2; i++) {
        cr_assert_eq(parse(&m, configs[i], &arena, &err), TP_OK, "%s", err.msg);
        cr_expect(m.rope_theta == 7 && m.local_rope_theta == 5 && !m.untrained &&
                      m.rope_scaling.type == ROPE_SCALING_LINEAR && m.rope_scaling.factor == 8,
                  "%s", configs[i]);
    }
    cr_assert_eq(parse(&m, "{" GEMMA3 "}", &arena, &err), TP_OK, "%s", err.msg);
    cr_expect(m.rope_theta == 1e6 && m.local_rope_theta == 1e4);
    cr_assert_eq(parse(&m,
                       "{" GEMMA3 ", \"rope_parameters\": {\"sliding_attention\": "
                       "{\"rope_type\": \"yarn\", \"factor\": 2}}}",
                       &arena, &err),
                 TP_OK, "%s", err.msg);
    cr_expect(m.untrained && strstr(m.untrained, "sliding window"));
    expect_refused(GEMMA3, ", \"rope_local_base_freq\": \"x\"", "rope_local_base_freq");
    arena_free(&arena);
}
