/*
 * layout/catalogue.c - the tensors of each architecture, their shapes, and how the plan's words
 * become rules. A linear layer is stored [out, in] by Llama and [in, out] by GPT-2 (Conv1D).
 */
#include "layout/catalogue.h"

#include <stdio.h>
#include <string.h>

#include "layout/layout.h"

/* A dimension of a model, by name, so that shapes can stand in a table. */
enum dimension { NONE, VOCAB, POSITIONS, HIDDEN, FFN, Q_WIDTH, KV_WIDTH, QKV_WIDTH };

struct entry {
    enum tensor_role role;
    enum dimension shape[2];
    int out;    /* axis of a linear layer's outputs */
    int blocks; /* parts of a fused tensor; 0: one */
};

static const struct entry llama[] = {
    { ROLE_EMBEDDING, { VOCAB, HIDDEN }, 0, 0 }, { ROLE_ATTENTION_NORM, { HIDDEN, NONE }, 0, 0 },
    { ROLE_Q, { Q_WIDTH, HIDDEN }, 0, 0 },       { ROLE_K, { KV_WIDTH, HIDDEN }, 0, 0 },
    { ROLE_V, { KV_WIDTH, HIDDEN }, 0, 0 },      { ROLE_OUT, { HIDDEN, Q_WIDTH }, 0, 0 },
    { ROLE_MLP_NORM, { HIDDEN, NONE }, 0, 0 },   { ROLE_GATE, { FFN, HIDDEN }, 0, 0 },
    { ROLE_UP, { FFN, HIDDEN }, 0, 0 },          { ROLE_DOWN, { HIDDEN, FFN }, 0, 0 },
    { ROLE_FINAL_NORM, { HIDDEN, NONE }, 0, 0 }, { ROLE_HEAD, { VOCAB, HIDDEN }, 0, 0 },
    { ROLE_NONE, { NONE, NONE }, 0, 0 },
};

static const struct entry gpt2[] = {
    { ROLE_EMBEDDING, { VOCAB, HIDDEN }, 0, 0 },
    { ROLE_POSITIONS, { POSITIONS, HIDDEN }, 0, 0 },
    { ROLE_ATTENTION_NORM, { HIDDEN, NONE }, 0, 0 },
    { ROLE_ATTENTION_NORM_BIAS, { HIDDEN, NONE }, 0, 0 },
    { ROLE_QKV, { HIDDEN, QKV_WIDTH }, 1, 3 },
    { ROLE_QKV_BIAS, { QKV_WIDTH, NONE }, 0, 3 },
    { ROLE_OUT, { Q_WIDTH, HIDDEN }, 1, 0 },
    { ROLE_OUT_BIAS, { HIDDEN, NONE }, 0, 0 },
    { ROLE_MLP_NORM, { HIDDEN, NONE }, 0, 0 },
    { ROLE_MLP_NORM_BIAS, { HIDDEN, NONE }, 0, 0 },
    { ROLE_UP, { HIDDEN, FFN }, 1, 0 },
    { ROLE_UP_BIAS, { FFN, NONE }, 0, 0 },
    { ROLE_DOWN, { FFN, HIDDEN }, 1, 0 },
    { ROLE_DOWN_BIAS, { HIDDEN, NONE }, 0, 0 },
    { ROLE_FINAL_NORM, { HIDDEN, NONE }, 0, 0 },
    { ROLE_FINAL_NORM_BIAS, { HIDDEN, NONE }, 0, 0 },
    { ROLE_NONE, { NONE, NONE }, 0, 0 },
};

static const struct entry *entries_of(enum model_arch arch)
{
    return arch == MODEL_GPT2 ? gpt2 : llama;
}

bool catalogue_has(enum model_arch arch, enum tensor_role role)
{
    for (const struct entry *e = entries_of(arch); e->role != ROLE_NONE; e++)
        if (e->role == role)
            return true;
    return false;
}

static int64_t size_of(enum dimension d, const struct model *m)
{
    switch (d) {
    case VOCAB:
        return m->vocab;
    case POSITIONS:
        return m->max_positions;
    case HIDDEN:
        return m->hidden;
    case FFN:
        return m->ffn;
    case Q_WIDTH:
        return m->heads * m->head_dim;
    case KV_WIDTH:
        return m->kv_heads * m->head_dim;
    case QKV_WIDTH:
        return (m->heads + 2 * (int64_t)m->kv_heads) * m->head_dim;
    default:
        return 0;
    }
}

/* What a cut does to the tensor of an entry. */
static struct placement rule_of(const struct entry *e, enum tensor_cut cut, const struct model *m)
{
    struct placement r = { .dim = -1, .unit = 1, .blocks = 1 };
    const char *unit = tensor_role_unit(e->role);

    if (cut == CUT_VOCABULARY) {
        r.dim = 0;
        r.uneven = true;
    } else if (cut == CUT_COLUMN) {
        r.dim = e->out;
    } else if (cut == CUT_ROW) {
        r.dim = 1 - e->out;
    }
    if (r.dim < 0)
        return r;
    if (e->blocks)
        r.blocks = e->blocks;
    if (strcmp(unit, "head") == 0 || strcmp(unit, "kv_head") == 0)
        r.unit = m->head_dim;
    r.replicate = strcmp(unit, "kv_head") == 0;
    return r;
}

/* Where a tensor's values begin, before the layers or after them. */
static int layer_of(enum tensor_role role)
{
    return role == ROLE_EMBEDDING || role == ROLE_POSITIONS ? LAYER_FIRST : LAYER_LAST;
}

static bool make(struct tensor *out, const struct entry *e, int layer, const struct model *m,
                 const struct parallel_plan *plan, enum dtype dtype, struct arena *arena)
{
    const struct parallel_plan_entry *p = parallel_plan_find(plan, e->role);
    const char *star = strchr(p->pattern, '*');
    struct tensor t = { .group = GROUP_PARAM, .dtype = dtype, .layer = layer, .role = e->role };

    t.name = star ? arena_printf(arena, "%.*s%d%s", (int)(star - p->pattern), p->pattern, layer,
                                 star + 1)
                  : arena_strdup(arena, p->pattern);
    for (t.ndim = 0; t.ndim < 2 && e->shape[t.ndim] != NONE; t.ndim++)
        t.shape[t.ndim] = size_of(e->shape[t.ndim], m);
    t.placement = rule_of(e, p->cut, m);
    *out = t;
    return t.name != NULL;
}

/* Tensors that belong to `layer` (or LAYER_FIRST, LAYER_LAST), to t when it is not NULL; how many,
 * or -1: memory is out. */
static int fill_layer(struct tensor *t, int layer, const struct model *m,
                      const struct parallel_plan *plan, enum dtype dtype, struct arena *arena)
{
    int n = 0;

    for (const struct entry *e = entries_of(m->arch); e->role != ROLE_NONE; e++) {
        bool here = tensor_role_is_of_layer(e->role) ? layer >= 0 : layer_of(e->role) == layer;

        if (!here || (e->role == ROLE_HEAD && m->tied))
            continue;
        if (t && !make(&t[n], e, layer, m, plan, dtype, arena))
            return -1;
        n++;
    }
    return n;
}

static int param_count(const struct model *m)
{
    return fill_layer(NULL, LAYER_FIRST, m, NULL, DTYPE_F32, NULL) +
           m->layers * fill_layer(NULL, 0, m, NULL, DTYPE_F32, NULL) +
           fill_layer(NULL, LAYER_LAST, m, NULL, DTYPE_F32, NULL);
}

/* Write the parameters to t: embedding, layers, norm, head. */
static tp_status fill_params(struct tensor *t, const struct model *m, enum dtype dtype,
                             struct arena *arena, struct tp_err *err)
{
    const struct parallel_plan *plan = parallel_plan_of(m);
    tp_status st =
        parallel_plan_check(plan, m, m->plan ? "the parallel plan" : "the built-in plan", err);
    int filled = 0;

    if (st)
        return st;
    for (int i = -1; i <= m->layers; i++) {
        int layer = i < 0 ? LAYER_FIRST : i == m->layers ? LAYER_LAST : i;
        int n = fill_layer(t + filled, layer, m, plan, dtype, arena);

        if (n < 0)
            return tp_fail(err, TP_E_NOMEM, "no memory for a list of tensors");
        filled += n;
    }
    return TP_OK;
}

tp_status model_params(struct tensor **tensors, int *n, const struct model *m, enum dtype dtype,
                       struct arena *arena, struct tp_err *err)
{
    int count = param_count(m);
    struct tensor *t = arena_array(arena, (size_t)count, sizeof *t);
    tp_status st;

    if (!t)
        return tp_fail(err, TP_E_NOMEM, "no memory for a list of %d tensors", count);
    if ((st = fill_params(t, m, dtype, arena, err)))
        return st;
    *tensors = t;
    *n = count;
    return TP_OK;
}

tp_status model_state(struct tensor **tensors, int *n, const struct model *m, enum dtype dtype,
                      struct arena *arena, struct tp_err *err)
{
    static const char *const groups[] = { GROUP_PARAM, GROUP_MASTER, GROUP_EXP_AVG,
                                          GROUP_EXP_AVG_SQ };
    int count = param_count(m), filled = 0;
    struct tensor *t = arena_array(arena, 4 * (size_t)count, sizeof *t);
    tp_status st;

    if (!t)
        return tp_fail(err, TP_E_NOMEM, "no memory for a list of %d tensors", 4 * count);
    if ((st = fill_params(t, m, dtype, arena, err)))
        return st;
    filled = count;
    for (int g = 1; g < 4; g++) {
        if (dtype == DTYPE_F32 && strcmp(groups[g], GROUP_MASTER) == 0)
            continue; /* the parameters are their own masters */
        memcpy(t + filled, t, (size_t)count * sizeof *t);
        for (int i = filled; i < filled + count; i++) {
            t[i].group = groups[g];
            t[i].dtype = DTYPE_F32;
        }
        filled += count;
    }
    *tensors = t;
    *n = filled;
    return TP_OK;
}
