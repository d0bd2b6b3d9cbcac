/* layout/family/gemma2.c - Gemma 2 (Gemma Team 2024) as transformers stores it: norms before and
 * after both blocks, capped scores and logits, and a sliding window in every second layer. Gemma 3
 * has its tensors. */
#include "layout/family.h"

static const struct family_key keys[] = {
    FAMILY_SIZES,
    FAMILY_NEED("num_key_value_heads", kv_heads, FAMILY_WIDTH_MAX),
    FAMILY_COUNT("head_dim", head_dim, FAMILY_WIDTH_MAX, 256),
    FAMILY_COUNT("max_position_embeddings", max_positions, FAMILY_POSITIONS_MAX, 8192),
    FAMILY_POSITIVE("rms_norm_eps", norm_eps, 1e-6),
    FAMILY_POSITIVE("initializer_range", init_std, 0.02),
    FAMILY_FLAG("tie_word_embeddings", tied, true),
    FAMILY_ROPE(10000),
    FAMILY_WINDOW("sliding_window", sliding_window, 4096),
    FAMILY_LAYERS("layer_types", full_layers, 2),
    FAMILY_POSITIVE("query_pre_attn_scalar", attention_scalar, 256),
    FAMILY_CAP("attn_logit_softcapping", attention_cap, 50),
    FAMILY_CAP("final_logit_softcapping", logit_cap, 30),
    FAMILY_ATTENTION_BIAS,
    FAMILY_TRAINS("hidden_activation", "[\"gelu\", \"gelu_pytorch_tanh\"]"),
    FAMILY_TRAINS("attention_dropout", "0"),
    FAMILY_TRAINS("is_causal", "true"),
    FAMILY_TRAINS("use_bidirectional_attention", "false"),
    FAMILY_KEYS_END,
};

/* A row is a line. */
/* clang-format off */
const struct family_tensor family_gemma2_tensors[] = {
    { ROLE_EMBEDDING, "model.embed_tokens.weight", { DIM_VOCAB, DIM_HIDDEN }, CUT_VOCABULARY, 0 },
    { ROLE_ATTENTION_NORM, "model.layers.*.input_layernorm.weight", { DIM_HIDDEN }, CUT_SEQUENCE, 0 },
    FAMILY_LLAMA_QKV,
    { ROLE_Q_NORM, "model.layers.*.self_attn.q_norm.weight", { DIM_HEAD_DIM }, CUT_REPLICATED, FAMILY_IF(head_norms) },
    { ROLE_K_NORM, "model.layers.*.self_attn.k_norm.weight", { DIM_HEAD_DIM }, CUT_REPLICATED, FAMILY_IF(head_norms) },
    { ROLE_OUT, "model.layers.*.self_attn.o_proj.weight", { DIM_HIDDEN, DIM_Q }, CUT_ROW, 0 },
    { ROLE_OUT_BIAS, "model.layers.*.self_attn.o_proj.bias", { DIM_HIDDEN }, CUT_SEQUENCE, FAMILY_IF(out_bias) },
    { ROLE_ATTENTION_POST_NORM, "model.layers.*.post_attention_layernorm.weight", { DIM_HIDDEN }, CUT_SEQUENCE, 0 },
    { ROLE_MLP_NORM, "model.layers.*.pre_feedforward_layernorm.weight", { DIM_HIDDEN }, CUT_SEQUENCE, 0 },
    { ROLE_GATE, "model.layers.*.mlp.gate_proj.weight", { DIM_FFN, DIM_HIDDEN }, CUT_COLUMN, 0 },
    { ROLE_UP, "model.layers.*.mlp.up_proj.weight", { DIM_FFN, DIM_HIDDEN }, CUT_COLUMN, 0 },
    { ROLE_DOWN, "model.layers.*.mlp.down_proj.weight", { DIM_HIDDEN, DIM_FFN }, CUT_ROW, 0 },
    { ROLE_MLP_POST_NORM, "model.layers.*.post_feedforward_layernorm.weight", { DIM_HIDDEN }, CUT_SEQUENCE, 0 },
    { ROLE_FINAL_NORM, "model.norm.weight", { DIM_HIDDEN }, CUT_SEQUENCE, 0 },
    { ROLE_HEAD, "lm_head.weight", { DIM_VOCAB, DIM_HIDDEN }, CUT_VOCABULARY, 0 },
    { ROLE_NONE, NULL, { DIM_NONE }, CUT_REPLICATED, 0 },
};
/* clang-format on */

const struct family family_gemma2 = {
    .architecture = "Gemma2ForCausalLM",
    .model_type = "gemma2",
    .norm = FAMILY_UNIT_RMS_NORM,
    .mlp = FAMILY_GEGLU,
    .scaled_embedding = true,
    .position = FAMILY_ROTARY,
    .buffers = { ".inv_freq" },
    .keys = keys,
    .tensors = family_gemma2_tensors,
};
