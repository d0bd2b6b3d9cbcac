/* layout/family/granite.c - Granite 3 (Granite Team 2024) as transformers stores it: a Llama whose
 * config.json has factors of the embedding, the scores, what blocks add to the residual, and the
 * logits. No tensor depends on them. */
#include "layout/family.h"

static const struct family_key keys[] = {
    FAMILY_LLAMA_KEYS,
    FAMILY_POSITIVE("embedding_multiplier", embedding_multiplier, 1),
    FAMILY_POSITIVE("attention_multiplier", attention_multiplier, 1),
    FAMILY_POSITIVE("residual_multiplier", residual_multiplier, 1),
    FAMILY_POSITIVE("logits_scaling", logits_scaling, 1),
    FAMILY_DROPOUT("attention_dropout", dropout, 0),
    FAMILY_TRAINS("hidden_act", "\"silu\""),
    FAMILY_TRAINS("is_causal", "true"),
    FAMILY_KEYS_END,
};

const struct family family_granite = {
    .architecture = "GraniteForCausalLM",
    .model_type = "granite",
    .norm = FAMILY_RMS_NORM,
    .mlp = FAMILY_SWIGLU,
    .position = FAMILY_ROTARY,
    .beyond_megatron = "factors of embedding, scores, residual and logits",
    .buffers = { ".inv_freq" },
    .keys = keys,
    .tensors = family_llama_tensors,
};
