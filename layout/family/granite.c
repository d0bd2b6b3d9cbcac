/* layout/family/granite.c - Granite 3 (Granite Team 2024) as transformers stores it: a Llama whose
 * config.json has factors of the embedding, the scores, what blocks add to the residual, and the
 * logits. No tensor depends on them, so llama.c has its table. */
#include "layout/family.h"

const struct family family_granite = {
    .architecture = "GraniteForCausalLM",
    .model_type = "granite",
    .norm = FAMILY_RMS_NORM,
    .mlp = FAMILY_SWIGLU,
    .position = FAMILY_ROTARY,
    .untrained = "factors of embedding, scores, residual and logits",
    .beyond_megatron = "factors of embedding, scores, residual and logits",
    .buffers = { ".inv_freq" },
    .keys = family_llama_keys,
    .tensors = family_llama_tensors,
};
