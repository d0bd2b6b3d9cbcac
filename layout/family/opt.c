/* layout/family/opt.c - OPT (Zhang et al. 2022) as transformers stores it. Its table of positions
 * begins with two rows for padding. */
#include "layout/family.h"

static const struct family_key keys[] = {
    FAMILY_NEED("vocab_size", vocab, FAMILY_VOCAB_MAX),
    FAMILY_NEED("hidden_size", hidden, FAMILY_WIDTH_MAX),
    FAMILY_COUNT("word_embed_proj_dim", embedding_width, FAMILY_WIDTH_MAX, 0),
    FAMILY_NEED("ffn_dim", ffn, FAMILY_WIDTH_MAX),
    FAMILY_NEED("num_hidden_layers", layers, FAMILY_LAYERS_MAX),
    FAMILY_NEED("num_attention_heads", heads, FAMILY_WIDTH_MAX),
    FAMILY_NEED("max_position_embeddings", max_positions, FAMILY_WIDTH_MAX),
    FAMILY_CONSTANT(norm_eps, 1e-5),
    FAMILY_POSITIVE("init_std", init_std, 0.02),
    FAMILY_DROPOUT("dropout", dropout, 0.1),
    FAMILY_DROPOUT("attention_dropout", dropout, 0),
    FAMILY_FLAG("tie_word_embeddings", tied, true),
    FAMILY_ONLY("do_layer_norm_before", "true", "norms after the blocks are not supported"),
    FAMILY_ONLY("_remove_final_layer_norm", "false", NULL),
    FAMILY_ONLY("enable_bias", "true", NULL),
    FAMILY_ONLY("layer_norm_elementwise_affine", "true", NULL),
    FAMILY_TRAINS("activation_function", "\"relu\""),
    FAMILY_TRAINS("layerdrop", "0"),
    FAMILY_KEYS_END,
};

/* A row is a line. */
/* clang-format off */
static const struct family_tensor tensors[] = {
    { ROLE_EMBEDDING, "model.decoder.embed_tokens.weight", { DIM_VOCAB, DIM_HIDDEN }, CUT_VOCABULARY, 0 },
    { ROLE_POSITIONS, "model.decoder.embed_positions.weight", { DIM_POSITIONS, DIM_HIDDEN }, CUT_REPLICATED, 0 },
    { ROLE_ATTENTION_NORM, "model.decoder.layers.*.self_attn_layer_norm.weight", { DIM_HIDDEN }, CUT_SEQUENCE, 0 },
    { ROLE_ATTENTION_NORM_BIAS, "model.decoder.layers.*.self_attn_layer_norm.bias", { DIM_HIDDEN }, CUT_SEQUENCE, 0 },
    { ROLE_Q, "model.decoder.layers.*.self_attn.q_proj.weight", { DIM_Q, DIM_HIDDEN }, CUT_COLUMN, 0 },
    { ROLE_K, "model.decoder.layers.*.self_attn.k_proj.weight", { DIM_KV, DIM_HIDDEN }, CUT_COLUMN, 0 },
    { ROLE_V, "model.decoder.layers.*.self_attn.v_proj.weight", { DIM_KV, DIM_HIDDEN }, CUT_COLUMN, 0 },
    { ROLE_Q_BIAS, "model.decoder.layers.*.self_attn.q_proj.bias", { DIM_Q }, CUT_COLUMN, 0 },
    { ROLE_K_BIAS, "model.decoder.layers.*.self_attn.k_proj.bias", { DIM_KV }, CUT_COLUMN, 0 },
    { ROLE_V_BIAS, "model.decoder.layers.*.self_attn.v_proj.bias", { DIM_KV }, CUT_COLUMN, 0 },
    { ROLE_OUT, "model.decoder.layers.*.self_attn.out_proj.weight", { DIM_HIDDEN, DIM_Q }, CUT_ROW, 0 },
    { ROLE_OUT_BIAS, "model.decoder.layers.*.self_attn.out_proj.bias", { DIM_HIDDEN }, CUT_SEQUENCE, 0 },
    { ROLE_MLP_NORM, "model.decoder.layers.*.final_layer_norm.weight", { DIM_HIDDEN }, CUT_SEQUENCE, 0 },
    { ROLE_MLP_NORM_BIAS, "model.decoder.layers.*.final_layer_norm.bias", { DIM_HIDDEN }, CUT_SEQUENCE, 0 },
    { ROLE_UP, "model.decoder.layers.*.fc1.weight", { DIM_FFN, DIM_HIDDEN }, CUT_COLUMN, 0 },
    { ROLE_UP_BIAS, "model.decoder.layers.*.fc1.bias", { DIM_FFN }, CUT_COLUMN, 0 },
    { ROLE_DOWN, "model.decoder.layers.*.fc2.weight", { DIM_HIDDEN, DIM_FFN }, CUT_ROW, 0 },
    { ROLE_DOWN_BIAS, "model.decoder.layers.*.fc2.bias", { DIM_HIDDEN }, CUT_SEQUENCE, 0 },
    { ROLE_FINAL_NORM, "model.decoder.final_layer_norm.weight", { DIM_HIDDEN }, CUT_SEQUENCE, 0 },
    { ROLE_FINAL_NORM_BIAS, "model.decoder.final_layer_norm.bias", { DIM_HIDDEN }, CUT_SEQUENCE, 0 },
    { ROLE_HEAD, "lm_head.weight", { DIM_VOCAB, DIM_HIDDEN }, CUT_VOCABULARY, 0 },
    { ROLE_NONE, NULL, { DIM_NONE }, CUT_REPLICATED, 0 },
};
/* clang-format on */

const struct family family_opt = {
    .architecture = "OPTForCausalLM",
    .model_type = "opt",
    .norm = FAMILY_LAYER_NORM,
    .mlp = FAMILY_RELU,
    .position = FAMILY_LEARNED,
    .extra_positions = 2,
    .keys = keys,
    .tensors = tensors,
};
