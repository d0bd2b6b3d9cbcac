/* layout/tensor.c - see layout/tensor.h. */
#include "layout/tensor.h"

#include <string.h>

#include "core/text.h"

/* The cuts that are possible for a role. */
enum {
    NEVER = 1 << CUT_REPLICATED,
    NORM = NEVER | 1 << CUT_SEQUENCE, /* also a bias that is added to the residual */
    LINEAR = NEVER | 1 << CUT_COLUMN | 1 << CUT_ROW,
    COLUMN_BIAS = NEVER | 1 << CUT_COLUMN,
    VOCABULARY = NEVER | 1 << CUT_VOCABULARY,
};

static const struct {
    const char *name;
    enum tensor_unit unit;
    int cuts;
    bool of_layer;
    int blocks; /* 0: not fused */
} roles[ROLE_COUNT] = {
    [ROLE_NONE] = { "?", UNIT_NONE, NEVER, false, 0 },
    [ROLE_EMBEDDING] = { "embedding", UNIT_TOKEN, VOCABULARY, false, 0 },
    [ROLE_POSITIONS] = { "positions", UNIT_NONE, NEVER, false, 0 },
    [ROLE_ATTENTION_NORM] = { "attention.norm", UNIT_NONE, NORM, true, 0 },
    [ROLE_ATTENTION_NORM_BIAS] = { "attention.norm.bias", UNIT_NONE, NORM, true, 0 },
    [ROLE_Q] = { "attention.q", UNIT_HEAD, LINEAR, true, 0 },
    [ROLE_K] = { "attention.k", UNIT_KV_HEAD, LINEAR, true, 0 },
    [ROLE_V] = { "attention.v", UNIT_KV_HEAD, LINEAR, true, 0 },
    [ROLE_Q_BIAS] = { "attention.q.bias", UNIT_HEAD, COLUMN_BIAS, true, 0 },
    [ROLE_K_BIAS] = { "attention.k.bias", UNIT_KV_HEAD, COLUMN_BIAS, true, 0 },
    [ROLE_V_BIAS] = { "attention.v.bias", UNIT_KV_HEAD, COLUMN_BIAS, true, 0 },
    [ROLE_Q_NORM] = { "attention.q.norm", UNIT_HEAD, COLUMN_BIAS, true, 0 },
    [ROLE_K_NORM] = { "attention.k.norm", UNIT_KV_HEAD, COLUMN_BIAS, true, 0 },
    [ROLE_QKV] = { "attention.qkv", UNIT_HEAD, LINEAR, true, 3 },
    [ROLE_QKV_BIAS] = { "attention.qkv.bias", UNIT_HEAD, COLUMN_BIAS, true, 3 },
    [ROLE_OUT] = { "attention.out", UNIT_HEAD, LINEAR, true, 0 },
    [ROLE_OUT_BIAS] = { "attention.out.bias", UNIT_NONE, NORM, true, 0 },
    [ROLE_ATTENTION_POST_NORM] = { "attention.post.norm", UNIT_NONE, NORM, true, 0 },
    [ROLE_MLP_NORM] = { "mlp.norm", UNIT_NONE, NORM, true, 0 },
    [ROLE_MLP_NORM_BIAS] = { "mlp.norm.bias", UNIT_NONE, NORM, true, 0 },
    [ROLE_GATE] = { "mlp.gate", UNIT_FEATURE, LINEAR, true, 0 },
    [ROLE_UP] = { "mlp.up", UNIT_FEATURE, LINEAR, true, 0 },
    [ROLE_GATE_BIAS] = { "mlp.gate.bias", UNIT_FEATURE, COLUMN_BIAS, true, 0 },
    [ROLE_UP_BIAS] = { "mlp.up.bias", UNIT_FEATURE, COLUMN_BIAS, true, 0 },
    [ROLE_GATE_UP] = { "mlp.gate_up", UNIT_FEATURE, LINEAR, true, 2 },
    [ROLE_DOWN] = { "mlp.down", UNIT_FEATURE, LINEAR, true, 0 },
    [ROLE_DOWN_BIAS] = { "mlp.down.bias", UNIT_NONE, NORM, true, 0 },
    [ROLE_MLP_POST_NORM] = { "mlp.post.norm", UNIT_NONE, NORM, true, 0 },
    [ROLE_ROUTER] = { "router", UNIT_NONE, NORM, true, 0 },
    [ROLE_EXPERT_GATE] = { "expert.gate", UNIT_FEATURE, LINEAR, true, 0 },
    [ROLE_EXPERT_UP] = { "expert.up", UNIT_FEATURE, LINEAR, true, 0 },
    [ROLE_EXPERT_DOWN] = { "expert.down", UNIT_FEATURE, LINEAR, true, 0 },
    [ROLE_FINAL_NORM] = { "norm", UNIT_NONE, NORM, false, 0 },
    [ROLE_FINAL_NORM_BIAS] = { "norm.bias", UNIT_NONE, NORM, false, 0 },
    [ROLE_HEAD] = { "head", UNIT_TOKEN, VOCABULARY, false, 0 },
};

static const char *const cuts[CUT_COUNT] = {
    [CUT_REPLICATED] = "replicated", [CUT_SEQUENCE] = "sequence",
    [CUT_COLUMN] = "column",         [CUT_ROW] = "row",
    [CUT_VOCABULARY] = "vocabulary",
};

static const char *const units[] = {
    [UNIT_NONE] = "",           [UNIT_TOKEN] = "token",     [UNIT_HEAD] = "head",
    [UNIT_KV_HEAD] = "kv_head", [UNIT_FEATURE] = "feature",
};

bool tensor_shape_is_possible(int ndim, const int64_t *shape)
{
    int64_t elements = 1;

    for (int d = 0; d < ndim; d++)
        if (__builtin_mul_overflow(elements, shape[d] ? shape[d] : 1, &elements) ||
            elements > TENSOR_ELEMENTS_MAX)
            return false;
    return true;
}

bool tensor_same_shape(const struct tensor *a, const struct tensor *b)
{
    return a->ndim == b->ndim &&
           memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape) == 0;
}

struct tensor_block tensor_block_of(const struct tensor *t, int block)
{
    const struct placement *p = &t->placement;
    int64_t all = t->shape[p->dim], each = all / p->blocks;

    if (p->first_block == 0)
        return (struct tensor_block){ block * each, each, p->unit };
    each = (all - p->first_block) / (p->blocks - 1);
    if (block == 0)
        return (struct tensor_block){ 0, p->first_block, p->first_block / each * p->unit };
    return (struct tensor_block){ p->first_block + (block - 1) * each, each, p->unit };
}

bool tensor_first_block_fits(const struct tensor *t)
{
    const struct placement *p = &t->placement;
    int64_t rest = p->dim < 0 ? 0 : t->shape[p->dim] - p->first_block;

    if (p->first_block == 0)
        return true;
    return p->blocks > 1 && rest > 0 && rest % (p->blocks - 1) == 0 &&
           p->unit <= rest / (p->blocks - 1) && p->first_block % (rest / (p->blocks - 1)) == 0;
}

int64_t tensor_units(const struct tensor *t)
{
    int64_t block = tensor_block_of(t, t->placement.blocks - 1).len;

    return block / t->placement.unit + (t->placement.uneven && block % t->placement.unit != 0);
}

const char *tensor_role_name(enum tensor_role r)
{
    return roles[r].name;
}

const char *tensor_cut_name(enum tensor_cut c)
{
    return cuts[c];
}

const char *tensor_unit_name(enum tensor_unit u)
{
    return units[u];
}

bool tensor_role_is_of_layer(enum tensor_role r)
{
    return roles[r].of_layer;
}

bool tensor_role_is_bias(enum tensor_role r)
{
    return text_ends_with(roles[r].name, ".bias");
}

bool tensor_role_is_norm(enum tensor_role r)
{
    return r == ROLE_FINAL_NORM || text_ends_with(roles[r].name, ".norm");
}

bool tensor_role_is_of_expert(enum tensor_role r)
{
    return r == ROLE_EXPERT_GATE || r == ROLE_EXPERT_UP || r == ROLE_EXPERT_DOWN;
}

enum tensor_unit tensor_role_unit(enum tensor_role r)
{
    return roles[r].unit;
}

int tensor_role_blocks(enum tensor_role r)
{
    return roles[r].blocks ? roles[r].blocks : 1;
}

bool tensor_role_allows(enum tensor_role r, enum tensor_cut c)
{
    return roles[r].cuts & 1 << c;
}
