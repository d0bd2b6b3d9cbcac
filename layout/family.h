/*
 * layout/family.h - a family of models as one table: the keys of its config.json, and its tensors
 * with their names, shapes and cuts.
 *
 * Each family is one file of layout/family/ that holds data only. To add one, write its table,
 * declare it at the end of this header, and add it to enum model_family (layout/model.h) and to
 * the list in layout/family.c.
 */
#ifndef LAYOUT_FAMILY_H
#define LAYOUT_FAMILY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "layout/model.h"
#include "layout/tensor.h"

/* The arithmetic of the layers. The trainer has code for each of these values. */
enum family_norm {
    FAMILY_RMS_NORM,
    FAMILY_UNIT_RMS_NORM, /* multiplies by 1 + weight */
    FAMILY_LAYER_NORM,
};
enum family_mlp { FAMILY_SWIGLU, FAMILY_GEGLU, FAMILY_GELU, FAMILY_RELU };
enum family_position { FAMILY_ROTARY, FAMILY_LEARNED };

/* ---- config.json ---- */

/* How the value of a key is read. */
enum family_value {
    FAMILY_VALUE_END,
    FAMILY_VALUE_NEED,     /* int or int64_t: a whole number from 1 to max, required */
    FAMILY_VALUE_COUNT,    /* the same, optional */
    FAMILY_VALUE_POSITIVE, /* double above 0 */
    FAMILY_VALUE_AMOUNT,   /* double, not negative */
    FAMILY_VALUE_FLAG,     /* bool */
    FAMILY_VALUE_DROPOUT,  /* double from 0 to below 1; the largest of such keys is kept */
    FAMILY_VALUE_ROPE,     /* the rotary embedding (layout/rope_config.h) */
    FAMILY_VALUE_LOCAL,    /* double: theta of the layers with a sliding window, in the same header;
                              a max of 1: that of the others where files do not tell layers apart.
                              Needs that one before it */
    FAMILY_VALUE_WINDOW,   /* int64_t: a count; null means 0, none */
    FAMILY_VALUE_NOPE,     /* const bool *: which layers have no rotary embedding; a list with 0 for
                              these, or N for every Nth layer. Needs the number of layers before it */
    FAMILY_VALUE_LAYERS,   /* const bool *: which layers have no sliding window; a list of types, or
                              N for every Nth layer, or 0: with use_sliding_window those with a rotary
                              embedding, else all. Needs the number of layers before it, and for 0
                              the layers without a rotary embedding */
    FAMILY_VALUE_CAP,      /* double above 0; null means 0, none */
    FAMILY_VALUE_GELU,     /* bool: whether the activation is GELU with erf, not with tanh; tp-train
                              implements no other */
    FAMILY_VALUE_FIXED,    /* bool: no key; the member has the same value in the whole family */
    FAMILY_VALUE_CONSTANT, /* double: the same */
    FAMILY_VALUE_ONLY,     /* no member, because the tensors are known for one value only */
    FAMILY_VALUE_TRAINS,   /* no member, because tp-train implements one value only */
};

struct family_key {
    const char *key; /* "a or b": two names for one thing */
    enum family_value value;
    size_t member, member_bytes; /* the member of struct model that it sets */
    int64_t max;
    double fallback;   /* when the key is absent */
    const char *only;  /* the one value, as JSON, or a list of some; an absent key has it */
    const char *other; /* what the message says about other values; may be NULL */
};

/* Rows of a family's table: key, member of struct model, limit, value when the key is absent. A
 * count of 0 is derived from other members (layout/model_config.c). */
/* clang-format off */
#define FAMILY_MEMBER(m)            offsetof(struct model, m), sizeof(((struct model *)0)->m)
#define FAMILY_NEED(k, m, max)      { k, FAMILY_VALUE_NEED, FAMILY_MEMBER(m), max, 0, 0, 0 }
#define FAMILY_COUNT(k, m, max, f)  { k, FAMILY_VALUE_COUNT, FAMILY_MEMBER(m), max, f, 0, 0 }
#define FAMILY_POSITIVE(k, m, f)    { k, FAMILY_VALUE_POSITIVE, FAMILY_MEMBER(m), 0, f, 0, 0 }
#define FAMILY_AMOUNT(k, m, f)      { k, FAMILY_VALUE_AMOUNT, FAMILY_MEMBER(m), 0, f, 0, 0 }
#define FAMILY_FLAG(k, m, f)        { k, FAMILY_VALUE_FLAG, FAMILY_MEMBER(m), 0, f, 0, 0 }
#define FAMILY_DROPOUT(k, m, f)     { k, FAMILY_VALUE_DROPOUT, FAMILY_MEMBER(m), 0, f, 0, 0 }
#define FAMILY_ROPE(f)              { "rope_theta", FAMILY_VALUE_ROPE, FAMILY_MEMBER(rope_theta), 0, f, 0, 0 }
#define FAMILY_WINDOW(k, m, f)      { k, FAMILY_VALUE_WINDOW, FAMILY_MEMBER(m), FAMILY_POSITIONS_MAX, f, 0, 0 }
#define FAMILY_LOCAL_ROPE(f)        { "rope_local_base_freq", FAMILY_VALUE_LOCAL, FAMILY_MEMBER(local_rope_theta), 0, f, 0, 0 }
#define FAMILY_COMMON_ROPE(f)       { "rope_local_base_freq", FAMILY_VALUE_LOCAL, FAMILY_MEMBER(local_rope_theta), 1, f, 0, 0 }
#define FAMILY_LAYERS(k, m, f)      { k, FAMILY_VALUE_LAYERS, FAMILY_MEMBER(m), FAMILY_LAYERS_MAX, f, 0, 0 }
#define FAMILY_NOPE(k, m, f)        { k, FAMILY_VALUE_NOPE, FAMILY_MEMBER(m), FAMILY_LAYERS_MAX, f, 0, 0 }
#define FAMILY_CAP(k, m, f)         { k, FAMILY_VALUE_CAP, FAMILY_MEMBER(m), 0, f, 0, 0 }
#define FAMILY_GELU_KIND(k, m, f)   { k, FAMILY_VALUE_GELU, FAMILY_MEMBER(m), 0, f, 0, 0 }
#define FAMILY_FIXED(m, v)          { "-", FAMILY_VALUE_FIXED, FAMILY_MEMBER(m), 0, v, 0, 0 }
#define FAMILY_CONSTANT(m, v)       { "-", FAMILY_VALUE_CONSTANT, FAMILY_MEMBER(m), 0, v, 0, 0 }
#define FAMILY_ONLY(k, json, other) { k, FAMILY_VALUE_ONLY, 0, 0, 0, 0, json, other }
#define FAMILY_TRAINS(k, json)      { k, FAMILY_VALUE_TRAINS, 0, 0, 0, 0, json, 0 }
#define FAMILY_KEYS_END             { 0, FAMILY_VALUE_END, 0, 0, 0, 0, 0, 0 }

/* Rows that several families have: their sizes; one key for the biases of attention; all of Llama's
 * that say what its tensors are; and what tp-train implements of layers such as Llama's. */
#define FAMILY_SIZES \
    FAMILY_NEED("vocab_size", vocab, FAMILY_VOCAB_MAX), \
    FAMILY_NEED("hidden_size", hidden, FAMILY_WIDTH_MAX), \
    FAMILY_NEED("intermediate_size", ffn, FAMILY_WIDTH_MAX), \
    FAMILY_NEED("num_hidden_layers", layers, FAMILY_LAYERS_MAX), \
    FAMILY_NEED("num_attention_heads", heads, FAMILY_WIDTH_MAX)
#define FAMILY_ATTENTION_BIAS \
    FAMILY_FLAG("attention_bias", qkv_bias, false), \
    FAMILY_FLAG("attention_bias", out_bias, false)
#define FAMILY_LLAMA_KEYS \
    FAMILY_SIZES, \
    FAMILY_COUNT("num_key_value_heads", kv_heads, FAMILY_WIDTH_MAX, 0), \
    FAMILY_COUNT("head_dim", head_dim, FAMILY_WIDTH_MAX, 0), \
    FAMILY_COUNT("max_position_embeddings", max_positions, FAMILY_POSITIONS_MAX, 2048), \
    FAMILY_POSITIVE("rms_norm_eps", norm_eps, 1e-6), \
    FAMILY_POSITIVE("initializer_range", init_std, 0.02), \
    FAMILY_ROPE(10000), \
    FAMILY_FLAG("tie_word_embeddings", tied, false), \
    FAMILY_ATTENTION_BIAS, \
    FAMILY_FLAG("mlp_bias", mlp_bias, false)
#define FAMILY_LLAMA_TRAINS \
    FAMILY_TRAINS("hidden_act", "\"silu\""), \
    FAMILY_TRAINS("attention_dropout", "0"), \
    FAMILY_TRAINS("is_causal", "true")
/* clang-format on */

/* Limits that keep all products of dimensions within 64 bits. */
enum {
    FAMILY_WIDTH_MAX = 1 << 20,
    FAMILY_LAYERS_MAX = 10000,
    FAMILY_VOCAB_MAX = 1 << 28,
    FAMILY_EXPERTS_MAX = 4096,
};
#define FAMILY_POSITIONS_MAX (INT64_C(1) << 40) /* where no weights depend on it */

/* ---- tensors ---- */

/* A dimension of the model, by name. */
enum family_dim {
    DIM_NONE,
    DIM_VOCAB,
    DIM_POSITIONS, /* with the family's extra_positions */
    DIM_HIDDEN,
    DIM_FFN,
    DIM_GATE_UP,  /* gate and up side by side */
    DIM_HEAD_DIM, /* of one head */
    DIM_Q,        /* heads x head_dim */
    DIM_KV,       /* kv_heads x head_dim */
    DIM_QKV,      /* query, key and value side by side */
    DIM_EXPERTS,
    DIM_EXPERT_FFN,
};

struct family_tensor {
    enum tensor_role role;
    const char *name;         /* `*` stands for the layer's number, a second one for the expert's */
    enum family_dim shape[2]; /* as stored; the second is DIM_NONE for a vector */
    enum tensor_cut cut;      /* Megatron-LM's */
    size_t has;               /* the bool of struct model that says whether there is such a tensor;
                                 0: there always is. A tied head is absent in any case */
};

/* A tensor that transformers 5 has in a module by another name than its files have, which a program
 * that saves the modules' state dict writes. That of experts has an axis for these and, where it is
 * two tensors of each, the rows of the first and then of the second. */
struct family_module {
    const char *name;          /* `*` stands for the layer's number */
    enum tensor_role roles[2]; /* what it is; ROLE_NONE: no more */
};

/* The last column of a row whose tensor only some models of the family have. */
#define FAMILY_IF(m) offsetof(struct model, m)

/* The rows of Llama's query, key and value, which other families have too. */
/* clang-format off */
#define FAMILY_LLAMA_QKV \
    { ROLE_Q, "model.layers.*.self_attn.q_proj.weight", { DIM_Q, DIM_HIDDEN }, CUT_COLUMN, 0 }, \
    { ROLE_K, "model.layers.*.self_attn.k_proj.weight", { DIM_KV, DIM_HIDDEN }, CUT_COLUMN, 0 }, \
    { ROLE_V, "model.layers.*.self_attn.v_proj.weight", { DIM_KV, DIM_HIDDEN }, CUT_COLUMN, 0 }, \
    { ROLE_Q_BIAS, "model.layers.*.self_attn.q_proj.bias", { DIM_Q }, CUT_COLUMN, FAMILY_IF(qkv_bias) }, \
    { ROLE_K_BIAS, "model.layers.*.self_attn.k_proj.bias", { DIM_KV }, CUT_COLUMN, FAMILY_IF(qkv_bias) }, \
    { ROLE_V_BIAS, "model.layers.*.self_attn.v_proj.bias", { DIM_KV }, CUT_COLUMN, FAMILY_IF(qkv_bias) }
/* clang-format on */

/* ---- the table ---- */

struct family {
    const char *architecture; /* in config.json's "architectures" */
    const char *model_type;
    enum family_norm norm;
    enum family_mlp mlp;
    enum family_position position;
    bool in_out;           /* the matrices of the layers are stored [in, out], others [out, in] */
    bool scaled_embedding; /* the residual begins with the embedding times sqrt(hidden) */
    bool keeps_rope;       /* config.json's rotary embedding is exported as it was read, because no
                              form has the same meaning in transformers 4 and 5 */
    bool qkv_by_head;      /* a fused query, key and value has these three head by head */
    int extra_positions;   /* rows of a table of positions beyond max_positions */
    double rotary_part; /* of each head that is rotated, where config.json does not say it; 0: all
                           of each head */
    const char *untrained;         /* what tp-train does not compute; NULL: nothing */
    const char *beyond_megatron;   /* what Megatron-LM's arguments, as they are written here, do not
                                      say, although the tensors fit; NULL: nothing */
    const char *buffers[4];        /* ends of the names of tensors that files may have and that are
                                      computed anyway; ends with NULL */
    const struct family_key *keys; /* ends with FAMILY_KEYS_END */
    const struct family_tensor *tensors; /* in the order of the model; ends with ROLE_NONE */
    const struct family_module
        *modules; /* ends with a name that is NULL; NULL: all are as in files */
};

/* The table of a model's family, and of a number below MODEL_FAMILIES. */
const struct family *family_of(const struct model *m);
const struct family *family_at(enum model_family number);

/* Whether a tensor of this name is a buffer of the family; f NULL: of any. */
bool family_has_buffer(const struct family *f, const char *name);

/* Whether the layer's tokens see only the model's sliding window. */
bool family_layer_has_window(const struct model *m, int layer);

/* Whether the layer rotates queries and keys by their positions. */
bool family_layer_has_rope(const struct model *m, int layer);

/* Whether the MLP multiplies its input by two matrices, a gate and up, instead of one. */
bool family_is_gated(const struct family *f);

/* Whether one norm is of all queries of a token and another of all its keys, with a weight for each
 * column. */
bool family_norms_all_heads(const struct model *m);

/* The family with this architecture, or, where `architecture` is NULL, with this model_type.
 * False: none has. */
bool family_find(enum model_family *out, const char *architecture, const char *model_type);

/* The family's tensor of this role; NULL: it has none. */
const struct family_tensor *family_tensor_find(const struct family *f, enum tensor_role role);

/* Whether the model has this tensor of its family. */
bool family_tensor_is_in(const struct family_tensor *t, const struct model *m);

/* How many tensors of this row a layer has: one, or one for each expert. */
int family_tensor_copies(const struct family_tensor *t, const struct model *m);

/* Elements of a dimension. */
int64_t family_dim_size(enum family_dim d, const struct model *m);

/* The axis of a linear layer's outputs in one of its tensors. */
int family_out_axis(const struct family *f, const struct family_tensor *t);

extern const struct family family_llama, family_gpt2, family_mistral, family_qwen2, family_qwen3,
    family_gemma, family_gemma2, family_gemma3, family_phi3, family_olmo2, family_gpt_neox,
    family_opt, family_mixtral, family_qwen3_moe, family_granite, family_olmo3, family_smollm3;

/* Tables that several families share. */
extern const struct family_tensor family_llama_tensors[], family_gemma2_tensors[],
    family_olmo2_tensors[];

#endif
