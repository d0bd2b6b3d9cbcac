/* layout/family/olmo3.c - OLMo 3 (OLMo Team 2025) as transformers stores it: OLMo 2 with a sliding
 * window in three of four layers. What scales the rotary embedding applies to the other layers
 * only. */
#include "layout/family.h"

static const struct family_key keys[] = {
    FAMILY_SIZES,
    FAMILY_COUNT("num_key_value_heads", kv_heads, FAMILY_WIDTH_MAX, 0),
    FAMILY_COUNT("head_dim", head_dim, FAMILY_WIDTH_MAX, 0),
    FAMILY_COUNT("max_position_embeddings", max_positions, FAMILY_POSITIONS_MAX, 2048),
    FAMILY_POSITIVE("rms_norm_eps", norm_eps, 1e-5),
    FAMILY_POSITIVE("initializer_range", init_std, 0.02),
    FAMILY_FLAG("tie_word_embeddings", tied, false),
    FAMILY_ROPE(500000),
    FAMILY_COMMON_ROPE(500000),
    FAMILY_WINDOW("sliding_window", sliding_window, 4096),
    FAMILY_LAYERS("layer_types", full_layers, 4),
    FAMILY_ATTENTION_BIAS,
    FAMILY_LLAMA_TRAINS,
    FAMILY_KEYS_END,
};

const struct family family_olmo3 = {
    .architecture = "Olmo3ForCausalLM",
    .model_type = "olmo3",
    .norm = FAMILY_RMS_NORM,
    .mlp = FAMILY_SWIGLU,
    .position = FAMILY_ROTARY,
    .keeps_rope = true,
    .buffers = { ".inv_freq" },
    .keys = keys,
    .tensors = family_olmo2_tensors,
};
