/* layout/family/qwen3_moe.c - Qwen3-MoE (Yang et al. 2025) as transformers stores it: a Qwen3 whose
 * MLPs are mixtures of experts. */
#include "layout/family.h"

static const struct family_key keys[] = {
    FAMILY_SIZES,
    FAMILY_NEED("num_key_value_heads", kv_heads, FAMILY_WIDTH_MAX),
    FAMILY_COUNT("head_dim", head_dim, FAMILY_WIDTH_MAX, 0),
    FAMILY_COUNT("max_position_embeddings", max_positions, FAMILY_POSITIONS_MAX, 32768),
    FAMILY_POSITIVE("rms_norm_eps", norm_eps, 1e-6),
    FAMILY_POSITIVE("initializer_range", init_std, 0.02),
    FAMILY_FLAG("tie_word_embeddings", tied, false),
    FAMILY_ROPE(10000),
    FAMILY_FIXED(head_norms, true),
    FAMILY_ATTENTION_BIAS,
    FAMILY_NEED("num_experts or num_local_experts", experts, FAMILY_EXPERTS_MAX),
    FAMILY_COUNT("num_experts_per_tok", experts_per_token, FAMILY_EXPERTS_MAX, 8),
    FAMILY_FLAG("norm_topk_prob", normalized_experts, false),
    FAMILY_FLAG("output_router_logits", balances_experts, false),
    FAMILY_AMOUNT("router_aux_loss_coef", balance_factor, 0.001),
    FAMILY_NEED("moe_intermediate_size", expert_ffn, FAMILY_WIDTH_MAX),
    FAMILY_ONLY("decoder_sparse_step", "1", "layers without experts are not supported"),
    FAMILY_ONLY("mlp_only_layers", "[]", "layers without experts are not supported"),
    FAMILY_TRAINS("use_sliding_window", "false"),
    FAMILY_LLAMA_TRAINS,
    FAMILY_KEYS_END,
};

/* A row is a line. */
/* clang-format off */
static const struct family_tensor tensors[] = {
    { ROLE_EMBEDDING, "model.embed_tokens.weight", { DIM_VOCAB, DIM_HIDDEN }, CUT_VOCABULARY, 0 },
    { ROLE_ATTENTION_NORM, "model.layers.*.input_layernorm.weight", { DIM_HIDDEN }, CUT_SEQUENCE, 0 },
    FAMILY_LLAMA_QKV,
    { ROLE_Q_NORM, "model.layers.*.self_attn.q_norm.weight", { DIM_HEAD_DIM }, CUT_REPLICATED, 0 },
    { ROLE_K_NORM, "model.layers.*.self_attn.k_norm.weight", { DIM_HEAD_DIM }, CUT_REPLICATED, 0 },
    { ROLE_OUT, "model.layers.*.self_attn.o_proj.weight", { DIM_HIDDEN, DIM_Q }, CUT_ROW, 0 },
    { ROLE_OUT_BIAS, "model.layers.*.self_attn.o_proj.bias", { DIM_HIDDEN }, CUT_SEQUENCE, FAMILY_IF(out_bias) },
    { ROLE_MLP_NORM, "model.layers.*.post_attention_layernorm.weight", { DIM_HIDDEN }, CUT_SEQUENCE, 0 },
    { ROLE_ROUTER, "model.layers.*.mlp.gate.weight", { DIM_EXPERTS, DIM_HIDDEN }, CUT_SEQUENCE, 0 },
    { ROLE_EXPERT_GATE, "model.layers.*.mlp.experts.*.gate_proj.weight", { DIM_EXPERT_FFN, DIM_HIDDEN }, CUT_COLUMN, 0 },
    { ROLE_EXPERT_UP, "model.layers.*.mlp.experts.*.up_proj.weight", { DIM_EXPERT_FFN, DIM_HIDDEN }, CUT_COLUMN, 0 },
    { ROLE_EXPERT_DOWN, "model.layers.*.mlp.experts.*.down_proj.weight", { DIM_HIDDEN, DIM_EXPERT_FFN }, CUT_ROW, 0 },
    { ROLE_FINAL_NORM, "model.norm.weight", { DIM_HIDDEN }, CUT_SEQUENCE, 0 },
    { ROLE_HEAD, "lm_head.weight", { DIM_VOCAB, DIM_HIDDEN }, CUT_VOCABULARY, 0 },
    { ROLE_NONE, NULL, { DIM_NONE }, CUT_REPLICATED, 0 },
};
/* clang-format on */

static const struct family_module modules[] = {
    { "model.layers.*.mlp.experts.gate_up_proj", { ROLE_EXPERT_GATE, ROLE_EXPERT_UP } },
    { "model.layers.*.mlp.experts.down_proj", { ROLE_EXPERT_DOWN } },
    { NULL, { ROLE_NONE } },
};

const struct family family_qwen3_moe = {
    .architecture = "Qwen3MoeForCausalLM",
    .model_type = "qwen3_moe",
    .norm = FAMILY_RMS_NORM,
    .mlp = FAMILY_SWIGLU,
    .position = FAMILY_ROTARY,
    .buffers = { ".inv_freq" },
    .keys = keys,
    .tensors = tensors,
    .modules = modules,
};
