/* layout/family/gpt_neox.c - GPT-NeoX and Pythia (Black et al. 2022) as transformers stores them.
 * Query, key and value are one tensor, head by head. */
#include "layout/family.h"

static const struct family_key keys[] = {
    FAMILY_SIZES,
    FAMILY_COUNT("max_position_embeddings", max_positions, FAMILY_POSITIONS_MAX, 2048),
    FAMILY_POSITIVE("layer_norm_eps", norm_eps, 1e-5),
    FAMILY_POSITIVE("initializer_range", init_std, 0.02),
    FAMILY_FLAG("tie_word_embeddings", tied, false),
    FAMILY_ROPE(10000),
    FAMILY_FLAG("attention_bias", qkv_bias, true),
    FAMILY_FLAG("attention_bias", out_bias, true),
    FAMILY_FLAG("use_parallel_residual", parallel_residual, true),
    FAMILY_GELU_KIND("hidden_act", exact_gelu, true),
    FAMILY_DROPOUT("attention_dropout", dropout, 0),
    FAMILY_DROPOUT("hidden_dropout", dropout, 0),
    FAMILY_KEYS_END,
};

/* A row is a line. */
/* clang-format off */
static const struct family_tensor tensors[] = {
    { ROLE_EMBEDDING, "gpt_neox.embed_in.weight", { DIM_VOCAB, DIM_HIDDEN }, CUT_VOCABULARY, 0 },
    { ROLE_ATTENTION_NORM, "gpt_neox.layers.*.input_layernorm.weight", { DIM_HIDDEN }, CUT_SEQUENCE, 0 },
    { ROLE_ATTENTION_NORM_BIAS, "gpt_neox.layers.*.input_layernorm.bias", { DIM_HIDDEN }, CUT_SEQUENCE, 0 },
    { ROLE_QKV, "gpt_neox.layers.*.attention.query_key_value.weight", { DIM_QKV, DIM_HIDDEN }, CUT_COLUMN, 0 },
    { ROLE_QKV_BIAS, "gpt_neox.layers.*.attention.query_key_value.bias", { DIM_QKV }, CUT_COLUMN, FAMILY_IF(qkv_bias) },
    { ROLE_OUT, "gpt_neox.layers.*.attention.dense.weight", { DIM_HIDDEN, DIM_Q }, CUT_ROW, 0 },
    { ROLE_OUT_BIAS, "gpt_neox.layers.*.attention.dense.bias", { DIM_HIDDEN }, CUT_SEQUENCE, FAMILY_IF(out_bias) },
    { ROLE_MLP_NORM, "gpt_neox.layers.*.post_attention_layernorm.weight", { DIM_HIDDEN }, CUT_SEQUENCE, 0 },
    { ROLE_MLP_NORM_BIAS, "gpt_neox.layers.*.post_attention_layernorm.bias", { DIM_HIDDEN }, CUT_SEQUENCE, 0 },
    { ROLE_UP, "gpt_neox.layers.*.mlp.dense_h_to_4h.weight", { DIM_FFN, DIM_HIDDEN }, CUT_COLUMN, 0 },
    { ROLE_UP_BIAS, "gpt_neox.layers.*.mlp.dense_h_to_4h.bias", { DIM_FFN }, CUT_COLUMN, 0 },
    { ROLE_DOWN, "gpt_neox.layers.*.mlp.dense_4h_to_h.weight", { DIM_HIDDEN, DIM_FFN }, CUT_ROW, 0 },
    { ROLE_DOWN_BIAS, "gpt_neox.layers.*.mlp.dense_4h_to_h.bias", { DIM_HIDDEN }, CUT_SEQUENCE, 0 },
    { ROLE_FINAL_NORM, "gpt_neox.final_layer_norm.weight", { DIM_HIDDEN }, CUT_SEQUENCE, 0 },
    { ROLE_FINAL_NORM_BIAS, "gpt_neox.final_layer_norm.bias", { DIM_HIDDEN }, CUT_SEQUENCE, 0 },
    { ROLE_HEAD, "embed_out.weight", { DIM_VOCAB, DIM_HIDDEN }, CUT_VOCABULARY, 0 },
    { ROLE_NONE, NULL, { DIM_NONE }, CUT_REPLICATED, 0 },
};
/* clang-format on */

static const struct family_module modules[] = {
    { "lm_head.weight", { ROLE_HEAD } },
    { NULL, { ROLE_NONE } },
};

const struct family family_gpt_neox = {
    .architecture = "GPTNeoXForCausalLM",
    .model_type = "gpt_neox",
    .norm = FAMILY_LAYER_NORM,
    .mlp = FAMILY_GELU,
    .position = FAMILY_ROTARY,
    .qkv_by_head = true,
    .rotary_part = 0.25,
    .buffers = { ".inv_freq", ".attention.bias", ".attention.masked_bias" },
    .keys = keys,
    .tensors = tensors,
    .modules = modules,
};
