/* layout/family/gemma3.c - the text model of Gemma 3 (Gemma Team 2025) as transformers stores it:
 * Gemma 2 with norms of each head's queries and keys, and with a rotary embedding of its own for
 * the layers with a sliding window, which are five of six. */
#include "layout/family.h"

static const struct family_key keys[] = {
    FAMILY_SIZES,
    FAMILY_NEED("num_key_value_heads", kv_heads, FAMILY_WIDTH_MAX),
    FAMILY_COUNT("head_dim", head_dim, FAMILY_WIDTH_MAX, 256),
    FAMILY_COUNT("max_position_embeddings", max_positions, FAMILY_POSITIONS_MAX, 131072),
    FAMILY_POSITIVE("rms_norm_eps", norm_eps, 1e-6),
    FAMILY_POSITIVE("initializer_range", init_std, 0.02),
    FAMILY_FLAG("tie_word_embeddings", tied, true),
    FAMILY_FIXED(head_norms, true),
    FAMILY_ROPE(1000000),
    FAMILY_LOCAL_ROPE(10000),
    FAMILY_WINDOW("sliding_window", sliding_window, 4096),
    FAMILY_LAYERS("layer_types or sliding_window_pattern", full_layers, 6),
    FAMILY_POSITIVE("query_pre_attn_scalar", attention_scalar, 256),
    FAMILY_CAP("final_logit_softcapping", logit_cap, 0),
    FAMILY_ATTENTION_BIAS,
    FAMILY_TRAINS("hidden_activation", "[\"gelu\", \"gelu_pytorch_tanh\"]"),
    FAMILY_TRAINS("attn_logit_softcapping", "null"),
    FAMILY_TRAINS("attention_dropout", "0"),
    FAMILY_TRAINS("is_causal", "true"),
    FAMILY_TRAINS("use_bidirectional_attention", "false"),
    FAMILY_KEYS_END,
};

const struct family family_gemma3 = {
    .architecture = "Gemma3ForCausalLM",
    .model_type = "gemma3_text",
    .norm = FAMILY_UNIT_RMS_NORM,
    .mlp = FAMILY_GEGLU,
    .scaled_embedding = true,
    .position = FAMILY_ROTARY,
    .buffers = { ".inv_freq" },
    .keys = keys,
    .tensors = family_gemma2_tensors,
};
