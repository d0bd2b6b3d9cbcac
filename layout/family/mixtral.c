/* layout/family/mixtral.c - Mixtral (Jiang et al. 2024) as transformers stores it: a Mistral whose
 * MLPs are mixtures of experts. */
#include "layout/family.h"

static const struct family_key keys[] = {
    FAMILY_SIZES,
    FAMILY_NEED("num_key_value_heads", kv_heads, FAMILY_WIDTH_MAX),
    FAMILY_COUNT("head_dim", head_dim, FAMILY_WIDTH_MAX, 0),
    FAMILY_COUNT("max_position_embeddings", max_positions, FAMILY_POSITIONS_MAX, 131072),
    FAMILY_POSITIVE("rms_norm_eps", norm_eps, 1e-5),
    FAMILY_POSITIVE("initializer_range", init_std, 0.02),
    FAMILY_FLAG("tie_word_embeddings", tied, false),
    FAMILY_ROPE(1000000),
    FAMILY_WINDOW("sliding_window", sliding_window, 0),
    FAMILY_NEED("num_local_experts", experts, FAMILY_EXPERTS_MAX),
    FAMILY_COUNT("num_experts_per_tok", experts_per_token, FAMILY_EXPERTS_MAX, 2),
    FAMILY_FIXED(normalized_experts, true),
    FAMILY_FLAG("output_router_logits", balances_experts, false),
    FAMILY_AMOUNT("router_aux_loss_coef", balance_factor, 0.001),
    FAMILY_TRAINS("router_jitter_noise", "0"),
    FAMILY_LLAMA_TRAINS,
    FAMILY_KEYS_END,
};

/* A row is a line. */
/* clang-format off */
static const struct family_tensor tensors[] = {
    { ROLE_EMBEDDING, "model.embed_tokens.weight", { DIM_VOCAB, DIM_HIDDEN }, CUT_VOCABULARY, 0 },
    { ROLE_ATTENTION_NORM, "model.layers.*.input_layernorm.weight", { DIM_HIDDEN }, CUT_SEQUENCE, 0 },
    { ROLE_Q, "model.layers.*.self_attn.q_proj.weight", { DIM_Q, DIM_HIDDEN }, CUT_COLUMN, 0 },
    { ROLE_K, "model.layers.*.self_attn.k_proj.weight", { DIM_KV, DIM_HIDDEN }, CUT_COLUMN, 0 },
    { ROLE_V, "model.layers.*.self_attn.v_proj.weight", { DIM_KV, DIM_HIDDEN }, CUT_COLUMN, 0 },
    { ROLE_OUT, "model.layers.*.self_attn.o_proj.weight", { DIM_HIDDEN, DIM_Q }, CUT_ROW, 0 },
    { ROLE_MLP_NORM, "model.layers.*.post_attention_layernorm.weight", { DIM_HIDDEN }, CUT_SEQUENCE, 0 },
    { ROLE_ROUTER, "model.layers.*.block_sparse_moe.gate.weight", { DIM_EXPERTS, DIM_HIDDEN }, CUT_SEQUENCE, 0 },
    { ROLE_EXPERT_GATE, "model.layers.*.block_sparse_moe.experts.*.w1.weight", { DIM_EXPERT_FFN, DIM_HIDDEN }, CUT_COLUMN, 0 },
    { ROLE_EXPERT_UP, "model.layers.*.block_sparse_moe.experts.*.w3.weight", { DIM_EXPERT_FFN, DIM_HIDDEN }, CUT_COLUMN, 0 },
    { ROLE_EXPERT_DOWN, "model.layers.*.block_sparse_moe.experts.*.w2.weight", { DIM_HIDDEN, DIM_EXPERT_FFN }, CUT_ROW, 0 },
    { ROLE_FINAL_NORM, "model.norm.weight", { DIM_HIDDEN }, CUT_SEQUENCE, 0 },
    { ROLE_HEAD, "lm_head.weight", { DIM_VOCAB, DIM_HIDDEN }, CUT_VOCABULARY, 0 },
    { ROLE_NONE, NULL, { DIM_NONE }, CUT_REPLICATED, 0 },
};
/* clang-format on */

static const struct family_module modules[] = {
    { "model.layers.*.mlp.gate.weight", { ROLE_ROUTER } },
    { "model.layers.*.mlp.experts.gate_up_proj", { ROLE_EXPERT_GATE, ROLE_EXPERT_UP } },
    { "model.layers.*.mlp.experts.down_proj", { ROLE_EXPERT_DOWN } },
    { NULL, { ROLE_NONE } },
};

const struct family family_mixtral = {
    .architecture = "MixtralForCausalLM",
    .model_type = "mixtral",
    .norm = FAMILY_RMS_NORM,
    .mlp = FAMILY_SWIGLU,
    .position = FAMILY_ROTARY,
    .buffers = { ".inv_freq" },
    .keys = keys,
    .tensors = tensors,
    .modules = modules,
};
