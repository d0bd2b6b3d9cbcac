/*
 * layout/tensor.h - a tensor: its name, shape and type, its role in the model, and its placement.
 *
 * Every tensor has one name and one shape whatever the layout: those of Hugging Face's files. The
 * placement says how tensor parallelism cuts it. Pure arithmetic: no I/O, no allocation.
 */
#ifndef LAYOUT_TENSOR_H
#define LAYOUT_TENSOR_H

#include <stdbool.h>
#include <stdint.h>

#include "layout/box.h"
#include "layout/dtype.h"

/* What a tensor is to the model. A family of models has some of these (layout/family.h). */
enum tensor_role {
    ROLE_NONE, /* not known: the tensor was read from a checkpoint */
    ROLE_EMBEDDING,
    ROLE_POSITIONS, /* learned positional embedding */
    ROLE_ATTENTION_NORM,
    ROLE_ATTENTION_NORM_BIAS,
    ROLE_Q,
    ROLE_K,
    ROLE_V,
    ROLE_Q_BIAS,
    ROLE_K_BIAS,
    ROLE_V_BIAS,
    ROLE_Q_NORM, /* of each head's queries, or of all queries of a token */
    ROLE_K_NORM,
    ROLE_QKV, /* query, key and value in one tensor */
    ROLE_QKV_BIAS,
    ROLE_OUT,
    ROLE_OUT_BIAS,
    ROLE_ATTENTION_POST_NORM, /* of what attention adds to the residual */
    ROLE_MLP_NORM,
    ROLE_MLP_NORM_BIAS,
    ROLE_GATE,
    ROLE_UP,
    ROLE_GATE_BIAS,
    ROLE_UP_BIAS,
    ROLE_GATE_UP, /* gate and up in one tensor */
    ROLE_DOWN,
    ROLE_DOWN_BIAS,
    ROLE_MLP_POST_NORM,
    ROLE_ROUTER,      /* of a mixture of experts: a score for each expert */
    ROLE_EXPERT_GATE, /* each expert has one */
    ROLE_EXPERT_UP,
    ROLE_EXPERT_DOWN,
    ROLE_FINAL_NORM,
    ROLE_FINAL_NORM_BIAS,
    ROLE_HEAD,
    ROLE_COUNT,
};

/* How tensor parallelism treats a tensor, in Megatron-LM's terms (Shoeybi et al. 2019; Korthikanti
 * et al. 2022 for sequence parallelism). */
enum tensor_cut {
    CUT_REPLICATED, /* not cut; every rank applies it to the whole sequence */
    CUT_SEQUENCE,   /* not cut; with sp each rank applies it to its part of the sequence */
    CUT_COLUMN,     /* a linear layer's outputs: a rank computes some of them */
    CUT_ROW,        /* a linear layer's inputs: a rank has some and computes a partial sum */
    CUT_VOCABULARY, /* rows of the embedding or the head */
    CUT_COUNT,
};

/* What a cut keeps together. */
enum tensor_unit { UNIT_NONE, UNIT_TOKEN, UNIT_HEAD, UNIT_KV_HEAD, UNIT_FEATURE };

/* Where tensor parallelism cuts a tensor. */
struct placement {
    int dim;      /* the axis that is cut; -1: every tp rank holds the whole tensor */
    int64_t unit; /* elements of that axis that stay together: the rows of a head, else 1 */
    int blocks;   /* parts of a fused tensor, each cut by itself (GPT-2's c_attn: 3), else 1 */
    int64_t first_block; /* elements of the first part where it is longer than the others, which
                            have the units: queries beside fewer keys and values; else 0 */
    bool replicate; /* fewer units than ranks: neighbouring ranks hold the same part (KV heads) */
    int expert, experts; /* of a mixture of experts: which one it is of, and of how many, which ep
                            ranks share; else 0 */
    bool uneven; /* parts may differ in size or be empty (the vocabulary), and the last unit may
                    be short; otherwise the ranks must divide the units */
};

enum {
    LAYER_FIRST = -1,     /* before the layers: on the first stage (embeddings, a tied head) */
    LAYER_LAST = -2,      /* after the layers: on the last stage (final norm, head) */
    TENSOR_BOXES_MAX = 8, /* most boxes of one tensor that a rank holds: one for each fused block */
    TENSOR_UNIT_MAX = 1 << 30, /* of a placement */
};

/* The groups of tensors that AdamW needs. A group may have any name; all but GROUP_PARAM are
 * optimizer state. */
#define GROUP_PARAM      "param"
#define GROUP_MASTER     "master"
#define GROUP_EXP_AVG    "exp_avg"
#define GROUP_EXP_AVG_SQ "exp_avg_sq"

struct tensor {
    const char *name;  /* Hugging Face's */
    const char *group; /* "param", "exp_avg", ... */
    enum dtype dtype;
    int ndim;
    int64_t shape[BOX_NDIM_MAX];
    struct placement placement;
    int layer; /* 0 .. n_layers - 1, LAYER_FIRST or LAYER_LAST */
    enum tensor_role role;
};

/* A tensor has at most 2^58 elements, so that sums of a few sizes in bytes do not overflow. */
#define TENSOR_ELEMENTS_MAX (INT64_C(1) << 58)

/* Whether a shape whose axes are at least 0 has at most that many elements. An axis of length 0
 * counts as 1: it must not hide one that is too long. */
bool tensor_shape_is_possible(int ndim, const int64_t *shape);

/* Whether two tensors have the same axes of the same sizes. */
bool tensor_same_shape(const struct tensor *a, const struct tensor *b);

/* Units of the cut axis in each fused block; a short last unit counts. placement.dim >= 0. */
int64_t tensor_units(const struct tensor *t);

/* A fused block of the cut axis. A longer first block has as many units as the others, so its
 * units are longer. */
struct tensor_block {
    int64_t from, len, unit;
};
struct tensor_block tensor_block_of(const struct tensor *t, int block);

/* Whether placement.first_block is 0, or leaves blocks of equal length, which have a unit at least,
 * and is a multiple of these. */
bool tensor_first_block_fits(const struct tensor *t);

/* "attention.q", "column", "kv_head": the words of a parallel plan. UNIT_NONE is "". */
const char *tensor_role_name(enum tensor_role r);
const char *tensor_cut_name(enum tensor_cut c);
const char *tensor_unit_name(enum tensor_unit u);

/* Whether every layer has a tensor of this role. */
bool tensor_role_is_of_layer(enum tensor_role r);

/* Whether it is the bias of a norm or of a linear layer. */
bool tensor_role_is_bias(enum tensor_role r);

/* Whether it is the weight of a norm. */
bool tensor_role_is_norm(enum tensor_role r);

/* Whether every expert of a layer has a tensor of this role. */
bool tensor_role_is_of_expert(enum tensor_role r);

/* What a cut of a tensor of this role keeps together; UNIT_NONE where there is nothing to cut. */
enum tensor_unit tensor_role_unit(enum tensor_role r);

/* Parts of a fused tensor, each cut by itself: 3 for query, key and value; 1: it is not fused. */
int tensor_role_blocks(enum tensor_role r);

/* Whether a tensor of this role may be cut like that. */
bool tensor_role_allows(enum tensor_role r, enum tensor_cut c);

#endif
