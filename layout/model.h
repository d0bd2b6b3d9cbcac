/*
 * layout/model.h - the dimensions of a transformer. They come from Hugging Face's config.json
 * (layout/model_config.h); the tensors follow from them (layout/model_tensors.h).
 */
#ifndef LAYOUT_MODEL_H
#define LAYOUT_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "layout/rope_scaling.h"

/* Models whose layers compute alike and whose tensors have the same roles (layout/family.h). */
enum model_family {
    MODEL_LLAMA,
    MODEL_GPT2,
    MODEL_MISTRAL,
    MODEL_QWEN2,
    MODEL_QWEN3,
    MODEL_GEMMA,
    MODEL_GEMMA2,
    MODEL_GEMMA3,
    MODEL_PHI3,
    MODEL_OLMO2,
    MODEL_GPT_NEOX,
    MODEL_OPT,
    MODEL_MIXTRAL,
    MODEL_QWEN3_MOE,
    MODEL_GRANITE,
    MODEL_OLMO3,
    MODEL_SMOLLM3,
    MODEL_FAMILIES,
    MODEL_OF_RULES = MODEL_FAMILIES /* no family: a file says how tensors are cut
                                       (layout/cut_rules.h); only config and layers are set */
};

struct parallel_plan; /* layout/parallel_plan.h */

struct model {
    enum model_family family;
    int64_t vocab, hidden, ffn; /* rows of the embedding; width; width inside the MLP */
    int64_t vocab_padding;      /* the last of these rows that no token has: 0, but from Megatron to
                                   Megatron, whose loss counts them */
    int layers, heads, kv_heads;
    int64_t head_dim;   /* may differ from hidden / heads */
    int64_t rotary_dim; /* the first elements of each head, which are rotated; 0: none are */
    double rotary_part; /* that part of a head, as config.json says it */
    int64_t max_positions;
    int64_t embedding_width; /* OPT's word_embed_proj_dim, which must be hidden; 0: not given */
    int experts, experts_per_token; /* of a mixture of experts; else 0 */
    int64_t expert_ffn;             /* width inside an expert; 0: ffn */
    bool normalized_experts;        /* the weights of a token's experts add up to 1 */
    bool balances_experts;          /* the loss has a part that balances the experts' load */
    double balance_factor;          /* of that part */
    int64_t sliding_window;         /* keys that a token sees, itself included; 0: all before it */
    const bool *full_layers;        /* [layers] whose tokens see all keys before them, whatever the
                                       window; NULL: none */
    const bool *nope_layers;        /* [layers] without a rotary embedding; NULL: none */
    double attention_scalar;        /* products of queries and keys are divided by its root; 0:
                                       head_dim */
    double attention_multiplier;    /* what they are multiplied by instead; 0: they are divided */
    double embedding_multiplier;    /* of the embedding, where the residual begins; 0: 1 */
    double residual_multiplier;     /* of what a block adds to the residual; 0: 1 */
    double logits_scaling;          /* what logits are divided by; 0: 1 */
    double attention_cap;           /* scores s become cap tanh(s / cap), as do logits by the next
                                       one; 0: they stay */
    double logit_cap;
    double norm_eps, rope_theta, init_std;
    struct rope_scaling rope_scaling;
    int64_t original_positions;        /* Phi-3's, which its longrope takes; 0: what rope_scaling
                                          says */
    double local_rope_theta;           /* of layers with the window, which nothing scales; 0: these
                                          are as the others */
    bool qkv_bias, out_bias, mlp_bias; /* linear layers that have biases, where families differ */
    bool head_norms;                   /* norms of each head's queries and keys */
    double dropout;                   /* the largest that config.json asks for; tp-train has none */
    bool exact_gelu;                  /* the MLP's GELU has erf, not tanh */
    bool parallel_residual;           /* both blocks of a layer read the residual before it */
    bool tied;                        /* the head uses the embedding's weights */
    const struct parallel_plan *plan; /* names and cuts of the tensors; NULL: the family's own */
    const char *untrained; /* what tp-train does not compute of this model, which can still be
                              imported, resharded and exported; NULL: nothing */
    const char *config;    /* config.json as read, for the checkpoint and the export */
};

#endif
