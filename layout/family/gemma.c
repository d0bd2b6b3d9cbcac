/* layout/family/gemma.c - Gemma (Gemma Team 2024) as transformers stores it. It has the tensors of
 * a Llama; its norms multiply by 1 + weight, its MLP has a gelu, and its embedding is scaled. */
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
    FAMILY_ATTENTION_BIAS,
    FAMILY_TRAINS("hidden_activation or hidden_act", "[\"gelu\", \"gelu_pytorch_tanh\"]"),
    FAMILY_TRAINS("attention_dropout", "0"),
    FAMILY_TRAINS("is_causal", "true"),
    FAMILY_TRAINS("use_bidirectional_attention", "false"),
    FAMILY_KEYS_END,
};

const struct family family_gemma = {
    .architecture = "GemmaForCausalLM",
    .model_type = "gemma",
    .norm = FAMILY_UNIT_RMS_NORM,
    .mlp = FAMILY_GEGLU,
    .scaled_embedding = true,
    .position = FAMILY_ROTARY,
    .buffers = { ".inv_freq" },
    .keys = keys,
    .tensors = family_llama_tensors,
};
