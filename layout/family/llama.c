/* layout/family/llama.c - Llama (Touvron et al. 2023) as transformers stores it. */
#include "layout/family.h"

static const struct family_key keys[] = {
    FAMILY_NEED("vocab_size", vocab, FAMILY_VOCAB_MAX),
    FAMILY_NEED("hidden_size", hidden, FAMILY_WIDTH_MAX),
    FAMILY_NEED("intermediate_size", ffn, FAMILY_WIDTH_MAX),
    FAMILY_NEED("num_hidden_layers", layers, FAMILY_LAYERS_MAX),
    FAMILY_NEED("num_attention_heads", heads, FAMILY_WIDTH_MAX),
    FAMILY_COUNT("num_key_value_heads", kv_heads, FAMILY_WIDTH_MAX, 0),
    FAMILY_COUNT("head_dim", head_dim, FAMILY_WIDTH_MAX, 0),
    FAMILY_COUNT("max_position_embeddings", max_positions, FAMILY_POSITIONS_MAX, 2048),
    FAMILY_POSITIVE("rms_norm_eps", norm_eps, 1e-6),
    FAMILY_POSITIVE("initializer_range", init_std, 0.02),
    FAMILY_ROPE("rope_theta", rope_theta, 10000),
    FAMILY_FLAG("tie_word_embeddings", tied, false),
    FAMILY_ONLY("attention_bias", "false", "biases are not supported"),
    FAMILY_ONLY("mlp_bias", "false", "biases are not supported"),
    FAMILY_ONLY("hidden_act", "\"silu\"", NULL),
    FAMILY_ONLY("attention_dropout", "0", "dropout is not supported"),
    FAMILY_KEYS_END,
};

/* clang-format off: a row is a line */
static const struct family_tensor tensors[] = {
    { ROLE_EMBEDDING, "model.embed_tokens.weight", { DIM_VOCAB, DIM_HIDDEN }, CUT_VOCABULARY },
    { ROLE_ATTENTION_NORM, "model.layers.*.input_layernorm.weight", { DIM_HIDDEN }, CUT_SEQUENCE },
    { ROLE_Q, "model.layers.*.self_attn.q_proj.weight", { DIM_Q, DIM_HIDDEN }, CUT_COLUMN },
    { ROLE_K, "model.layers.*.self_attn.k_proj.weight", { DIM_KV, DIM_HIDDEN }, CUT_COLUMN },
    { ROLE_V, "model.layers.*.self_attn.v_proj.weight", { DIM_KV, DIM_HIDDEN }, CUT_COLUMN },
    { ROLE_OUT, "model.layers.*.self_attn.o_proj.weight", { DIM_HIDDEN, DIM_Q }, CUT_ROW },
    { ROLE_MLP_NORM,
      "model.layers.*.post_attention_layernorm.weight",
      { DIM_HIDDEN },
      CUT_SEQUENCE },
    { ROLE_GATE, "model.layers.*.mlp.gate_proj.weight", { DIM_FFN, DIM_HIDDEN }, CUT_COLUMN },
    { ROLE_UP, "model.layers.*.mlp.up_proj.weight", { DIM_FFN, DIM_HIDDEN }, CUT_COLUMN },
    { ROLE_DOWN, "model.layers.*.mlp.down_proj.weight", { DIM_HIDDEN, DIM_FFN }, CUT_ROW },
    { ROLE_FINAL_NORM, "model.norm.weight", { DIM_HIDDEN }, CUT_SEQUENCE },
    { ROLE_HEAD, "lm_head.weight", { DIM_VOCAB, DIM_HIDDEN }, CUT_VOCABULARY },
    { ROLE_NONE, NULL, { DIM_NONE }, CUT_REPLICATED },
};
/* clang-format on */

const struct family family_llama = {
    .architecture = "LlamaForCausalLM",
    .model_type = "llama",
    .norm = FAMILY_RMS_NORM,
    .mlp = FAMILY_SWIGLU,
    .position = FAMILY_ROTARY,
    .in_out = false,
    .keys = keys,
    .tensors = tensors,
};
