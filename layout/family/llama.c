/* layout/family/llama.c - Llama 1 to 3.3 (Touvron et al. 2023) as transformers stores it. Mistral,
 * Qwen2, Qwen3, Gemma, Granite and SmolLM3 have its tensors. */
#include "layout/family.h"

static const struct family_key keys[] = {
    FAMILY_LLAMA_KEYS,
    FAMILY_LLAMA_TRAINS,
    FAMILY_KEYS_END,
};

/* A row is a line. */
/* clang-format off */
const struct family_tensor family_llama_tensors[] = {
    { ROLE_EMBEDDING, "model.embed_tokens.weight", { DIM_VOCAB, DIM_HIDDEN }, CUT_VOCABULARY, 0 },
    { ROLE_ATTENTION_NORM, "model.layers.*.input_layernorm.weight", { DIM_HIDDEN }, CUT_SEQUENCE, 0 },
    FAMILY_LLAMA_QKV,
    { ROLE_Q_NORM, "model.layers.*.self_attn.q_norm.weight", { DIM_HEAD_DIM }, CUT_REPLICATED, FAMILY_IF(head_norms) },
    { ROLE_K_NORM, "model.layers.*.self_attn.k_norm.weight", { DIM_HEAD_DIM }, CUT_REPLICATED, FAMILY_IF(head_norms) },
    { ROLE_OUT, "model.layers.*.self_attn.o_proj.weight", { DIM_HIDDEN, DIM_Q }, CUT_ROW, 0 },
    { ROLE_OUT_BIAS, "model.layers.*.self_attn.o_proj.bias", { DIM_HIDDEN }, CUT_SEQUENCE, FAMILY_IF(out_bias) },
    { ROLE_MLP_NORM, "model.layers.*.post_attention_layernorm.weight", { DIM_HIDDEN }, CUT_SEQUENCE, 0 },
    { ROLE_GATE, "model.layers.*.mlp.gate_proj.weight", { DIM_FFN, DIM_HIDDEN }, CUT_COLUMN, 0 },
    { ROLE_UP, "model.layers.*.mlp.up_proj.weight", { DIM_FFN, DIM_HIDDEN }, CUT_COLUMN, 0 },
    { ROLE_GATE_BIAS, "model.layers.*.mlp.gate_proj.bias", { DIM_FFN }, CUT_COLUMN, FAMILY_IF(mlp_bias) },
    { ROLE_UP_BIAS, "model.layers.*.mlp.up_proj.bias", { DIM_FFN }, CUT_COLUMN, FAMILY_IF(mlp_bias) },
    { ROLE_DOWN, "model.layers.*.mlp.down_proj.weight", { DIM_HIDDEN, DIM_FFN }, CUT_ROW, 0 },
    { ROLE_DOWN_BIAS, "model.layers.*.mlp.down_proj.bias", { DIM_HIDDEN }, CUT_SEQUENCE, FAMILY_IF(mlp_bias) },
    { ROLE_FINAL_NORM, "model.norm.weight", { DIM_HIDDEN }, CUT_SEQUENCE, 0 },
    { ROLE_HEAD, "lm_head.weight", { DIM_VOCAB, DIM_HIDDEN }, CUT_VOCABULARY, 0 },
    { ROLE_NONE, NULL, { DIM_NONE }, CUT_REPLICATED, 0 },
};
/* clang-format on */

const struct family family_llama = {
    .architecture = "LlamaForCausalLM",
    .model_type = "llama",
    .norm = FAMILY_RMS_NORM,
    .mlp = FAMILY_SWIGLU,
    .position = FAMILY_ROTARY,
    .buffers = { ".inv_freq" },
    .keys = keys,
    .tensors = family_llama_tensors,
};
