/* layout/family/qwen3.c - Qwen3 (Yang et al. 2025) as transformers stores it: a Llama with norms of
 * each head's queries and keys. */
#include "layout/family.h"

static const struct family_key keys[] = {
    FAMILY_SIZES,
    FAMILY_NEED("num_key_value_heads", kv_heads, FAMILY_WIDTH_MAX),
    FAMILY_COUNT("head_dim", head_dim, FAMILY_WIDTH_MAX, 128),
    FAMILY_COUNT("max_position_embeddings", max_positions, FAMILY_POSITIONS_MAX, 32768),
    FAMILY_POSITIVE("rms_norm_eps", norm_eps, 1e-6),
    FAMILY_POSITIVE("initializer_range", init_std, 0.02),
    FAMILY_FLAG("tie_word_embeddings", tied, false),
    FAMILY_ROPE(10000),
    FAMILY_FIXED(head_norms, true),
    FAMILY_ATTENTION_BIAS,
    FAMILY_TRAINS("use_sliding_window", "false"),
    FAMILY_LLAMA_TRAINS,
    FAMILY_KEYS_END,
};

const struct family family_qwen3 = {
    .architecture = "Qwen3ForCausalLM",
    .model_type = "qwen3",
    .norm = FAMILY_RMS_NORM,
    .mlp = FAMILY_SWIGLU,
    .position = FAMILY_ROTARY,
    .buffers = { ".inv_freq" },
    .keys = keys,
    .tensors = family_llama_tensors,
};
