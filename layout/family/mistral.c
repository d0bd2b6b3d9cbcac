/* layout/family/mistral.c - Mistral (Jiang et al. 2023) as transformers stores it: a Llama with a
 * sliding window of attention. With layer_types it is what transformers computes as Ministral. */
#include "layout/family.h"

static const struct family_key keys[] = {
    FAMILY_SIZES,
    FAMILY_NEED("num_key_value_heads", kv_heads, FAMILY_WIDTH_MAX),
    FAMILY_COUNT("head_dim", head_dim, FAMILY_WIDTH_MAX, 0),
    FAMILY_COUNT("max_position_embeddings", max_positions, FAMILY_POSITIONS_MAX, 131072),
    FAMILY_POSITIVE("rms_norm_eps", norm_eps, 1e-6),
    FAMILY_POSITIVE("initializer_range", init_std, 0.02),
    FAMILY_FLAG("tie_word_embeddings", tied, false),
    FAMILY_ROPE(10000),
    FAMILY_WINDOW("sliding_window", sliding_window, 4096),
    FAMILY_LAYERS("layer_types", full_layers, FAMILY_LAYERS_MAX + 1), /* all have the window */
    FAMILY_LLAMA_TRAINS,
    FAMILY_KEYS_END,
};

const struct family family_mistral = {
    .architecture = "MistralForCausalLM",
    .model_type = "mistral",
    .norm = FAMILY_RMS_NORM,
    .mlp = FAMILY_SWIGLU,
    .position = FAMILY_ROTARY,
    .buffers = { ".inv_freq" },
    .keys = keys,
    .tensors = family_llama_tensors,
};
