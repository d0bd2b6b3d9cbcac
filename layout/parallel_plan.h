/*
 * layout/parallel_plan.h - the parallel plan: which tensors a model has and how tensor parallelism
 * cuts each, as a table of name patterns. What Megatron-LM spreads over its layer classes (Shoeybi
 * et al. 2019; Korthikanti et al. 2022 for sequence parallelism) is data here.
 *
 * As text, a line a tensor, `#` begins a comment:
 *
 *     attention.q    model.layers.*.self_attn.q_proj.weight    column    head
 *
 * role (what the tensor is to the model), name (`*` is the layer's number), cut, and the unit that
 * stays whole, which may be left out. Cuts:
 *
 *   column      a linear layer's outputs: each rank computes some of them from the whole input
 *   row         its inputs: each rank has some of them and computes a part of the sum
 *   vocabulary  rows of the embedding or the head
 *   sequence    not cut; under `sp` each rank applies it to its part of the sequence
 *   replicated  not cut, and applied to the whole sequence by every rank
 *
 * Pure arithmetic on values: no I/O.
 */
#ifndef LAYOUT_PARALLEL_PLAN_H
#define LAYOUT_PARALLEL_PLAN_H

#include <stdbool.h>
#include <stddef.h>

#include "core/arena.h"
#include "core/err.h"
#include "layout/model.h"

/* What a tensor is to the model. An architecture has some of them (layout/catalogue.h). */
enum tensor_role {
    ROLE_NONE, /* not known: a tensor that was read from a checkpoint */
    ROLE_EMBEDDING,
    ROLE_POSITIONS,
    ROLE_ATTENTION_NORM,
    ROLE_ATTENTION_NORM_BIAS,
    ROLE_Q,
    ROLE_K,
    ROLE_V,
    ROLE_QKV, /* q, k and v side by side in one tensor */
    ROLE_QKV_BIAS,
    ROLE_OUT,
    ROLE_OUT_BIAS,
    ROLE_MLP_NORM,
    ROLE_MLP_NORM_BIAS,
    ROLE_GATE,
    ROLE_UP,
    ROLE_UP_BIAS,
    ROLE_DOWN,
    ROLE_DOWN_BIAS,
    ROLE_FINAL_NORM,
    ROLE_FINAL_NORM_BIAS,
    ROLE_HEAD,
    ROLE_COUNT,
};

enum tensor_cut { CUT_REPLICATED, CUT_SEQUENCE, CUT_COLUMN, CUT_ROW, CUT_VOCABULARY };

enum { PARALLEL_PLAN_NAME_MAX = 200, PARALLEL_PLAN_BYTES_MAX = 1 << 16 };

struct parallel_plan_entry {
    enum tensor_role role;
    const char *pattern; /* one `*` for the layer's number in a role of a layer, else none */
    enum tensor_cut cut;
};

struct parallel_plan {
    int n;
    struct parallel_plan_entry entries[ROLE_COUNT];
};

/* "attention.q", "column", ... */
const char *tensor_role_name(enum tensor_role r);
const char *tensor_cut_name(enum tensor_cut c);

/* Whether every layer has a tensor of this role. */
bool tensor_role_is_of_layer(enum tensor_role r);

/* Whether it is added: the bias of a norm or of a linear layer. */
bool tensor_role_is_bias(enum tensor_role r);

/* What must stay whole of a tensor that is cut: "head", "kv_head", "feature", "token"; "" where
 * there is nothing to cut. */
const char *tensor_role_unit(enum tensor_role r);

/* The plan of an architecture: its tensors as transformers names them, cut as Megatron-LM cuts
 * them. */
const struct parallel_plan *parallel_plan_builtin(enum model_arch arch);

/* The plan of a model: its own, or its architecture's. */
const struct parallel_plan *parallel_plan_of(const struct model *m);

/* Read a plan's text (any bytes; `path` for messages). Strings live in the arena.
 * TP_E_USAGE: not a plan; names the line. It may still make no sense: parallel_plan_check. */
tp_status parallel_plan_parse(struct parallel_plan *out, const char *text, size_t size,
                              const char *path, struct arena *arena, struct tp_err *err);

/* Whether the plan has what the model needs, once each, and whether the pieces fit: what a cut
 * layer computes must feed one that expects it in pieces. `path` is for messages ("the built-in
 * plan"). TP_E_USAGE says which two tensors do not fit and what would. */
tp_status parallel_plan_check(const struct parallel_plan *p, const struct model *m,
                              const char *path, struct tp_err *err);

/* The plan as text that parallel_plan_parse reads; NULL when memory is out. */
char *parallel_plan_format(const struct parallel_plan *p, struct arena *arena);

/* The entry of a role; NULL: none. */
const struct parallel_plan_entry *parallel_plan_find(const struct parallel_plan *p,
                                                     enum tensor_role r);

#endif
