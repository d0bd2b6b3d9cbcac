/* layout/parameter_order.c - see layout/parameter_order.h. The orders were read in the __init__ of
 * transformers' classes, versions 4.28 to 5.24; tests/clients compares them with live models. */
#include "layout/parameter_order.h"

#include <string.h>

/* clang-format off */
#define FAMILY(name) (1U << MODEL_##name)

#define ATTENTION                                                                         \
    ROLE_Q, ROLE_Q_BIAS, ROLE_K, ROLE_K_BIAS, ROLE_V, ROLE_V_BIAS, ROLE_OUT, ROLE_OUT_BIAS, \
    ROLE_Q_NORM, ROLE_K_NORM
#define NORMS ROLE_ATTENTION_NORM, ROLE_ATTENTION_POST_NORM, ROLE_MLP_NORM, ROLE_MLP_POST_NORM
#define END   ROLE_FINAL_NORM, ROLE_HEAD, ROLE_NONE

static const char llama[] = {
    ROLE_EMBEDDING, ATTENTION, ROLE_GATE, ROLE_GATE_BIAS, ROLE_UP, ROLE_UP_BIAS, ROLE_DOWN,
    ROLE_DOWN_BIAS, NORMS, END
};
static const char llama_before_431[] = {
    ROLE_EMBEDDING, ATTENTION, ROLE_GATE, ROLE_GATE_BIAS, ROLE_DOWN, ROLE_DOWN_BIAS, ROLE_UP,
    ROLE_UP_BIAS, NORMS, END
};
static const char gemma2_of_445[] = {
    ROLE_EMBEDDING, ATTENTION, ROLE_GATE, ROLE_UP, ROLE_DOWN, ROLE_ATTENTION_NORM, ROLE_MLP_NORM,
    ROLE_MLP_POST_NORM, ROLE_ATTENTION_POST_NORM, END
};
static const char phi3[] = {
    ROLE_EMBEDDING, ROLE_OUT, ROLE_QKV, ROLE_GATE_UP, ROLE_DOWN, NORMS, END
};
static const char mixtral[] = {
    ROLE_EMBEDDING, ATTENTION, ROLE_ROUTER, ROLE_EXPERT_GATE, ROLE_EXPERT_UP, ROLE_EXPERT_DOWN,
    NORMS, END
};
static const char mixtral_before_5[] = {
    ROLE_EMBEDDING, ATTENTION, ROLE_ROUTER, ROLE_EXPERT_GATE, ROLE_EXPERT_DOWN, ROLE_EXPERT_UP,
    NORMS, END
};
static const char qwen3_moe[] = {
    ROLE_EMBEDDING, ATTENTION, ROLE_EXPERT_GATE, ROLE_EXPERT_UP, ROLE_EXPERT_DOWN, ROLE_ROUTER,
    NORMS, END
};
static const char qwen3_moe_before_5[] = {
    ROLE_EMBEDDING, ATTENTION, ROLE_ROUTER, ROLE_EXPERT_GATE, ROLE_EXPERT_UP, ROLE_EXPERT_DOWN,
    NORMS, END
};
static const char gpt2[] = {
    ROLE_EMBEDDING, ROLE_POSITIONS, ROLE_ATTENTION_NORM, ROLE_ATTENTION_NORM_BIAS, ROLE_QKV,
    ROLE_QKV_BIAS, ROLE_OUT, ROLE_OUT_BIAS, ROLE_MLP_NORM, ROLE_MLP_NORM_BIAS, ROLE_UP,
    ROLE_UP_BIAS, ROLE_DOWN, ROLE_DOWN_BIAS, ROLE_FINAL_NORM, ROLE_FINAL_NORM_BIAS, ROLE_HEAD,
    ROLE_NONE
};
static const char gpt_neox[] = {
    ROLE_EMBEDDING, ROLE_ATTENTION_NORM, ROLE_ATTENTION_NORM_BIAS, ROLE_MLP_NORM,
    ROLE_MLP_NORM_BIAS, ROLE_QKV, ROLE_QKV_BIAS, ROLE_OUT, ROLE_OUT_BIAS, ROLE_UP, ROLE_UP_BIAS,
    ROLE_DOWN, ROLE_DOWN_BIAS, ROLE_FINAL_NORM, ROLE_FINAL_NORM_BIAS, ROLE_HEAD, ROLE_NONE
};
static const char opt[] = {
    ROLE_EMBEDDING, ROLE_POSITIONS, ROLE_FINAL_NORM, ROLE_FINAL_NORM_BIAS, ROLE_K, ROLE_K_BIAS,
    ROLE_V, ROLE_V_BIAS, ROLE_Q, ROLE_Q_BIAS, ROLE_OUT, ROLE_OUT_BIAS, ROLE_ATTENTION_NORM,
    ROLE_ATTENTION_NORM_BIAS, ROLE_UP, ROLE_UP_BIAS, ROLE_DOWN, ROLE_DOWN_BIAS, ROLE_MLP_NORM,
    ROLE_MLP_NORM_BIAS, ROLE_HEAD, ROLE_NONE
};

static const struct parameter_order orders[] = {
    { FAMILY(MISTRAL) | FAMILY(QWEN2) | FAMILY(QWEN3) | FAMILY(GEMMA) | FAMILY(GEMMA3) |
      FAMILY(OLMO2) | FAMILY(OLMO3) | FAMILY(GRANITE) | FAMILY(SMOLLM3), 0, 0, llama },
    { FAMILY(LLAMA), 431, 0, llama },
    { FAMILY(LLAMA), 0, 431, llama_before_431 },
    { FAMILY(GEMMA2), 447, 0, llama },
    { FAMILY(GEMMA2), 445, 447, gemma2_of_445 },
    { FAMILY(GEMMA2), 0, 445, llama },
    { FAMILY(PHI3), 0, 0, phi3 },
    { FAMILY(MIXTRAL), 500, 0, mixtral },
    { FAMILY(MIXTRAL), 0, 500, mixtral_before_5 },
    { FAMILY(QWEN3_MOE), 500, 0, qwen3_moe },
    { FAMILY(QWEN3_MOE), 0, 500, qwen3_moe_before_5 },
    { FAMILY(GPT2), 0, 0, gpt2 },
    { FAMILY(GPT_NEOX), 0, 0, gpt_neox },
    { FAMILY(OPT), 0, 0, opt },
};
/* clang-format on */

enum { ORDERS = sizeof orders / sizeof *orders };

const struct parameter_order *parameter_order_of(enum model_family family, int i)
{
    for (int k = 0; k < ORDERS && family < MODEL_FAMILIES; k++)
        if ((orders[k].families & 1U << family) && i-- == 0)
            return &orders[k];
    return NULL;
}

bool parameter_order_is_of(const struct parameter_order *o, int version)
{
    return version >= o->since && (o->before == 0 || version < o->before);
}

/* What is being listed. */
struct order_list {
    const struct parameter_order *order;
    const struct model *model;
    struct arena *arena;
    struct parameter_order_item *out;
    int n_out;
};

/* The first of n tensors with this role, of this expert; NULL: there is none. */
static const struct tensor *find(const struct tensor *tensors, int n, int role, int expert)
{
    for (int i = 0; i < n; i++)
        if ((int)tensors[i].role == role &&
            (!tensor_role_is_of_expert(tensors[i].role) || tensors[i].placement.expert == expert))
            return &tensors[i];
    return NULL;
}

/* Add a tensor, unless the model does not have it, or it is stacked in a parameter before it. */
static tp_status add(struct order_list *l, const struct tensor *t, struct tp_err *err)
{
    struct parameter_order_item item = { .tensor = t };
    tp_status st = TP_OK;

    if (!t)
        return TP_OK;
    item.module = (struct module_name){ .name = t->name, .is_first = true };
    if (!l->order->before)
        st = module_name_of(&item.module, l->model, t, l->arena, err);
    if (!st && item.module.is_first)
        l->out[l->n_out++] = item;
    return st;
}

/* Add the experts of one layer, whose roles are roles[0 .. n_roles - 1]. */
static tp_status add_experts(struct order_list *l, const char *roles, int n_roles,
                             const struct tensor *tensors, int n, struct tp_err *err)
{
    const struct tensor *first = find(tensors, n, *roles, 0);
    const int experts = first ? first->placement.experts : 0;
    tp_status st = TP_OK;

    for (int e = 0; e < experts; e++)
        for (int i = 0; i < n_roles && !st; i++)
            st = add(l, find(tensors, n, roles[i], e), err);
    return st;
}

/* Add what roles[0 .. n_roles - 1] are of one layer. */
static tp_status add_layer(struct order_list *l, const char *roles, int n_roles,
                           const struct tensor *tensors, int n, struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int i = 0, end; i < n_roles && !st; i = end) {
        for (end = i; tensor_role_is_of_expert((enum tensor_role)roles[end]);)
            end++;
        if (end > i)
            st = add_experts(l, roles + i, end - i, tensors, n, err);
        else
            st = add(l, find(tensors, n, roles[end++], 0), err);
    }
    return st;
}

/* Add the layers, whose tensors are in order and have the roles roles[0 .. n_roles - 1]. */
static tp_status add_layers(struct order_list *l, const char *roles, int n_roles,
                            const struct tensor *tensors, int n, struct tp_err *err)
{
    int at = 0, end;
    tp_status st = TP_OK;

    while (at < n && tensors[at].layer < 0)
        at++;
    for (; at < n && tensors[at].layer >= 0 && !st; at = end) {
        for (end = at; end < n && tensors[end].layer == tensors[at].layer;)
            end++;
        st = add_layer(l, roles, n_roles, tensors + at, end - at, err);
    }
    return st;
}

tp_status parameter_order_list(struct parameter_order_item **out, int *n_out,
                               const struct parameter_order *o, const struct model *m,
                               const struct tensor *tensors, int n, struct arena *arena,
                               struct tp_err *err)
{
    struct order_list l = { .order = o, .model = m, .arena = arena };
    tp_status st = TP_OK;

    l.out = arena_array(arena, (size_t)n + 1, sizeof *l.out);
    if (!l.out)
        return tp_fail(err, TP_E_NOMEM, "no memory for a list of %d tensors", n);
    for (const char *r = o->roles, *end; *r != ROLE_NONE && !st; r = end) {
        for (end = r; tensor_role_is_of_layer((enum tensor_role) * end);)
            end++;
        if (end > r)
            st = add_layers(&l, r, (int)(end - r), tensors, n, err);
        else
            st = add(&l, find(tensors, n, *end++, 0), err);
    }
    *out = l.out;
    *n_out = l.n_out;
    return st;
}

int parameter_order_shape(int64_t shape[BOX_NDIM_MAX], const struct parameter_order_item *p)
{
    const bool stacked = p->module.is_stacked;

    memcpy(shape, stacked ? p->module.shape : p->tensor->shape, sizeof p->tensor->shape);
    return p->tensor->ndim + stacked;
}
