/* layout/family/phi3.c - Phi-3 and Phi-4 (Abdin et al. 2024) as transformers stores them: a Llama
 * whose query, key and value are one tensor, and gate and up another. */
#include "layout/family.h"

static const struct family_key keys[] = {
    FAMILY_SIZES,
    FAMILY_COUNT("num_key_value_heads", kv_heads, FAMILY_WIDTH_MAX, 0),
    FAMILY_COUNT("head_dim", head_dim, FAMILY_WIDTH_MAX, 0),
    FAMILY_COUNT("max_position_embeddings", max_positions, FAMILY_POSITIONS_MAX, 4096),
    FAMILY_COUNT("original_max_position_embeddings", original_positions, FAMILY_POSITIONS_MAX,
                 4096),
    FAMILY_POSITIVE("rms_norm_eps", norm_eps, 1e-5),
    FAMILY_POSITIVE("initializer_range", init_std, 0.02),
    FAMILY_FLAG("tie_word_embeddings", tied, false),
    FAMILY_ROPE(10000),
    FAMILY_WINDOW("sliding_window", sliding_window, 0),
    FAMILY_TRAINS("hidden_act", "\"silu\""),
    FAMILY_TRAINS("attention_dropout", "0"),
    FAMILY_TRAINS("resid_pdrop", "0"),
    FAMILY_TRAINS("is_causal", "true"),
    FAMILY_KEYS_END,
};

/* A row is a line. */
/* clang-format off */
static const struct family_tensor tensors[] = {
    { ROLE_EMBEDDING, "model.embed_tokens.weight", { DIM_VOCAB, DIM_HIDDEN }, CUT_VOCABULARY, 0 },
    { ROLE_ATTENTION_NORM, "model.layers.*.input_layernorm.weight", { DIM_HIDDEN }, CUT_SEQUENCE, 0 },
    { ROLE_QKV, "model.layers.*.self_attn.qkv_proj.weight", { DIM_QKV, DIM_HIDDEN }, CUT_COLUMN, 0 },
    { ROLE_OUT, "model.layers.*.self_attn.o_proj.weight", { DIM_HIDDEN, DIM_Q }, CUT_ROW, 0 },
    { ROLE_MLP_NORM, "model.layers.*.post_attention_layernorm.weight", { DIM_HIDDEN }, CUT_SEQUENCE, 0 },
    { ROLE_GATE_UP, "model.layers.*.mlp.gate_up_proj.weight", { DIM_GATE_UP, DIM_HIDDEN }, CUT_COLUMN, 0 },
    { ROLE_DOWN, "model.layers.*.mlp.down_proj.weight", { DIM_HIDDEN, DIM_FFN }, CUT_ROW, 0 },
    { ROLE_FINAL_NORM, "model.norm.weight", { DIM_HIDDEN }, CUT_SEQUENCE, 0 },
    { ROLE_HEAD, "lm_head.weight", { DIM_VOCAB, DIM_HIDDEN }, CUT_VOCABULARY, 0 },
    { ROLE_NONE, NULL, { DIM_NONE }, CUT_REPLICATED, 0 },
};
/* clang-format on */

const struct family family_phi3 = {
    .architecture = "Phi3ForCausalLM",
    .model_type = "phi3",
    .norm = FAMILY_RMS_NORM,
    .mlp = FAMILY_SWIGLU,
    .position = FAMILY_ROTARY,
    .rotary_part = 1,
    .buffers = { ".inv_freq" },
    .keys = keys,
    .tensors = tensors,
};
