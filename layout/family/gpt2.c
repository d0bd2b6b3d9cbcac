/* layout/family/gpt2.c - GPT-2 (Radford et al. 2019) as transformers stores it. Its linear layers
 * are Conv1D, so their matrices are [in, out]; query, key and value are one tensor. */
#include "layout/family.h"

static const struct family_key keys[] = {
    FAMILY_NEED("vocab_size", vocab, FAMILY_VOCAB_MAX),
    FAMILY_COUNT("n_embd", hidden, FAMILY_WIDTH_MAX, 768),
    FAMILY_COUNT("n_layer", layers, FAMILY_LAYERS_MAX, 12),
    FAMILY_COUNT("n_head", heads, FAMILY_WIDTH_MAX, 12),
    FAMILY_COUNT("n_inner", ffn, FAMILY_WIDTH_MAX, 0),
    FAMILY_COUNT("n_positions", max_positions, FAMILY_WIDTH_MAX, 1024),
    FAMILY_POSITIVE("layer_norm_epsilon", norm_eps, 1e-5),
    FAMILY_POSITIVE("initializer_range", init_std, 0.02),
    FAMILY_DROPOUT("attn_pdrop", dropout, 0.1),
    FAMILY_DROPOUT("embd_pdrop", dropout, 0.1),
    FAMILY_DROPOUT("resid_pdrop", dropout, 0.1),
    FAMILY_FLAG("tie_word_embeddings", tied, true),
    FAMILY_ONLY("tie_word_embeddings", "true", "a head of its own is not supported"),
    FAMILY_TRAINS("is_causal", "true"),
    FAMILY_TRAINS("scale_attn_weights", "true"),
    FAMILY_TRAINS("scale_attn_by_inverse_layer_idx", "false"),
    FAMILY_ONLY("add_cross_attention", "false", NULL),
    FAMILY_TRAINS("activation_function", "\"gelu_new\""),
    FAMILY_KEYS_END,
};

/* A row is a line. */
/* clang-format off */
static const struct family_tensor tensors[] = {
    { ROLE_EMBEDDING, "transformer.wte.weight", { DIM_VOCAB, DIM_HIDDEN }, CUT_VOCABULARY, 0 },
    { ROLE_POSITIONS, "transformer.wpe.weight", { DIM_POSITIONS, DIM_HIDDEN }, CUT_REPLICATED, 0 },
    { ROLE_ATTENTION_NORM, "transformer.h.*.ln_1.weight", { DIM_HIDDEN }, CUT_SEQUENCE, 0 },
    { ROLE_ATTENTION_NORM_BIAS, "transformer.h.*.ln_1.bias", { DIM_HIDDEN }, CUT_SEQUENCE, 0 },
    { ROLE_QKV, "transformer.h.*.attn.c_attn.weight", { DIM_HIDDEN, DIM_QKV }, CUT_COLUMN, 0 },
    { ROLE_QKV_BIAS, "transformer.h.*.attn.c_attn.bias", { DIM_QKV }, CUT_COLUMN, 0 },
    { ROLE_OUT, "transformer.h.*.attn.c_proj.weight", { DIM_Q, DIM_HIDDEN }, CUT_ROW, 0 },
    { ROLE_OUT_BIAS, "transformer.h.*.attn.c_proj.bias", { DIM_HIDDEN }, CUT_SEQUENCE, 0 },
    { ROLE_MLP_NORM, "transformer.h.*.ln_2.weight", { DIM_HIDDEN }, CUT_SEQUENCE, 0 },
    { ROLE_MLP_NORM_BIAS, "transformer.h.*.ln_2.bias", { DIM_HIDDEN }, CUT_SEQUENCE, 0 },
    { ROLE_UP, "transformer.h.*.mlp.c_fc.weight", { DIM_HIDDEN, DIM_FFN }, CUT_COLUMN, 0 },
    { ROLE_UP_BIAS, "transformer.h.*.mlp.c_fc.bias", { DIM_FFN }, CUT_COLUMN, 0 },
    { ROLE_DOWN, "transformer.h.*.mlp.c_proj.weight", { DIM_FFN, DIM_HIDDEN }, CUT_ROW, 0 },
    { ROLE_DOWN_BIAS, "transformer.h.*.mlp.c_proj.bias", { DIM_HIDDEN }, CUT_SEQUENCE, 0 },
    { ROLE_FINAL_NORM, "transformer.ln_f.weight", { DIM_HIDDEN }, CUT_SEQUENCE, 0 },
    { ROLE_FINAL_NORM_BIAS, "transformer.ln_f.bias", { DIM_HIDDEN }, CUT_SEQUENCE, 0 },
    { ROLE_NONE, NULL, { DIM_NONE }, CUT_REPLICATED, 0 },
};
/* clang-format on */

const struct family family_gpt2 = {
    .architecture = "GPT2LMHeadModel",
    .model_type = "gpt2",
    .norm = FAMILY_LAYER_NORM,
    .mlp = FAMILY_GELU,
    .position = FAMILY_LEARNED,
    .in_out = true,
    .buffers = { ".attn.bias", ".attn.masked_bias" },
    .keys = keys,
    .tensors = tensors,
};
