/* layout/family/olmo2.c - OLMo 2 (OLMo Team 2024) as transformers stores it: norms after the
 * blocks, and norms of all queries and of all keys of a token. OLMo 3 has its tensors. */
#include "layout/family.h"

static const struct family_key keys[] = {
    FAMILY_SIZES,
    FAMILY_COUNT("num_key_value_heads", kv_heads, FAMILY_WIDTH_MAX, 0),
    FAMILY_COUNT("head_dim", head_dim, FAMILY_WIDTH_MAX, 0),
    FAMILY_COUNT("max_position_embeddings", max_positions, FAMILY_POSITIONS_MAX, 2048),
    FAMILY_POSITIVE("rms_norm_eps", norm_eps, 1e-5),
    FAMILY_POSITIVE("initializer_range", init_std, 0.02),
    FAMILY_FLAG("tie_word_embeddings", tied, false),
    FAMILY_ROPE(10000),
    FAMILY_ATTENTION_BIAS,
    FAMILY_LLAMA_TRAINS,
    FAMILY_KEYS_END,
};

/* A row is a line. */
/* clang-format off */
const struct family_tensor family_olmo2_tensors[] = {
    { ROLE_EMBEDDING, "model.embed_tokens.weight", { DIM_VOCAB, DIM_HIDDEN }, CUT_VOCABULARY, 0 },
    FAMILY_LLAMA_QKV,
    { ROLE_Q_NORM, "model.layers.*.self_attn.q_norm.weight", { DIM_Q }, CUT_COLUMN, 0 },
    { ROLE_K_NORM, "model.layers.*.self_attn.k_norm.weight", { DIM_KV }, CUT_COLUMN, 0 },
    { ROLE_OUT, "model.layers.*.self_attn.o_proj.weight", { DIM_HIDDEN, DIM_Q }, CUT_ROW, 0 },
    { ROLE_OUT_BIAS, "model.layers.*.self_attn.o_proj.bias", { DIM_HIDDEN }, CUT_SEQUENCE, FAMILY_IF(out_bias) },
    { ROLE_ATTENTION_POST_NORM, "model.layers.*.post_attention_layernorm.weight", { DIM_HIDDEN }, CUT_SEQUENCE, 0 },
    { ROLE_GATE, "model.layers.*.mlp.gate_proj.weight", { DIM_FFN, DIM_HIDDEN }, CUT_COLUMN, 0 },
    { ROLE_UP, "model.layers.*.mlp.up_proj.weight", { DIM_FFN, DIM_HIDDEN }, CUT_COLUMN, 0 },
    { ROLE_DOWN, "model.layers.*.mlp.down_proj.weight", { DIM_HIDDEN, DIM_FFN }, CUT_ROW, 0 },
    { ROLE_MLP_POST_NORM, "model.layers.*.post_feedforward_layernorm.weight", { DIM_HIDDEN }, CUT_SEQUENCE, 0 },
    { ROLE_FINAL_NORM, "model.norm.weight", { DIM_HIDDEN }, CUT_SEQUENCE, 0 },
    { ROLE_HEAD, "lm_head.weight", { DIM_VOCAB, DIM_HIDDEN }, CUT_VOCABULARY, 0 },
    { ROLE_NONE, NULL, { DIM_NONE }, CUT_REPLICATED, 0 },
};
/* clang-format on */

const struct family family_olmo2 = {
    .architecture = "Olmo2ForCausalLM",
    .model_type = "olmo2",
    .norm = FAMILY_RMS_NORM,
    .mlp = FAMILY_SWIGLU,
    .position = FAMILY_ROTARY,
    .buffers = { ".inv_freq" },
    .keys = keys,
    .tensors = family_olmo2_tensors,
};
