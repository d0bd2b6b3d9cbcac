/* layout/family/smollm3.c - SmolLM3 (Bakouch et al. 2025) as transformers stores it: a Llama whose
 * every fourth layer has no rotary embedding (NoPE). No tensor depends on that. */
#include "layout/family.h"

static const struct family_key keys[] = {
    FAMILY_SIZES,
    FAMILY_NEED("num_key_value_heads", kv_heads, FAMILY_WIDTH_MAX),
    FAMILY_COUNT("head_dim", head_dim, FAMILY_WIDTH_MAX, 0),
    FAMILY_COUNT("max_position_embeddings", max_positions, FAMILY_POSITIONS_MAX, 32768),
    FAMILY_POSITIVE("rms_norm_eps", norm_eps, 1e-6),
    FAMILY_POSITIVE("initializer_range", init_std, 0.02),
    FAMILY_ROPE(2000000),
    FAMILY_FLAG("tie_word_embeddings", tied, true),
    FAMILY_NOPE("no_rope_layers or no_rope_layer_interval", nope_layers, 4),
    FAMILY_WINDOW("sliding_window", sliding_window, 0),
    FAMILY_LAYERS("layer_types", full_layers, 0),
    FAMILY_ATTENTION_BIAS,
    FAMILY_FLAG("mlp_bias", mlp_bias, false),
    FAMILY_LLAMA_TRAINS,
    FAMILY_KEYS_END,
};

const struct family family_smollm3 = {
    .architecture = "SmolLM3ForCausalLM",
    .model_type = "smollm3",
    .norm = FAMILY_RMS_NORM,
    .mlp = FAMILY_SWIGLU,
    .position = FAMILY_ROTARY,
    .beyond_megatron = "layers without a rotary embedding",
    .buffers = { ".inv_freq" },
    .keys = keys,
    .tensors = family_llama_tensors,
};
