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
      FAMILY(OLMO2) | FAMILY(OLMO3) | FAMILY(GRANITE) | FAMILY(SMOLLM3), 0, 0, llama, false },
    { FAMILY(LLAMA), 431, 0, llama, false },
    { FAMILY(LLAMA), 0, 431, llama_before_431, false },
    { FAMILY(GEMMA2), 447, 0, llama, false },
    { FAMILY(GEMMA2), 445, 447, gemma2_of_445, false },
    { FAMILY(GEMMA2), 0, 445, llama, false },
    { FAMILY(PHI3), 0, 0, phi3, false },
    { FAMILY(MIXTRAL), 500, 0, mixtral, true },
    { FAMILY(MIXTRAL), 0, 500, mixtral_before_5, false },
    { FAMILY(QWEN3_MOE), 500, 0, qwen3_moe, true },
    { FAMILY(QWEN3_MOE), 0, 500, qwen3_moe_before_5, false },
    { FAMILY(GPT2), 0, 0, gpt2, false },
    { FAMILY(GPT_NEOX), 0, 0, gpt_neox, false },
    { FAMILY(OPT), 0, 0, opt, false },
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

static void add(struct order_list *l, const struct tensor *t)
{
    if (t)
        l->out[l->n_out++] = (struct parameter_order_item){ t, NULL, 0 };
}

/* Add the experts of one layer, whose roles begin at `roles`. Returns how many roles these are. */
static int add_experts(struct order_list *l, const char *roles, const struct tensor *tensors, int n)
{
    const struct tensor *first = find(tensors, n, *roles, 0);
    const int experts = first ? first->placement.experts : 0;
    int n_roles = 0;

    while (tensor_role_is_of_expert((enum tensor_role)roles[n_roles]))
        n_roles++;
    for (int e = 0; e < experts && !l->order->stacked; e++)
        for (int i = 0; i < n_roles; i++)
            add(l, find(tensors, n, roles[i], e));
    for (int i = 0; i < n_roles && experts && l->order->stacked; i++) {
        const bool gate = roles[i] == ROLE_EXPERT_GATE;

        if (roles[i] != ROLE_EXPERT_UP)
            l->out[l->n_out++] =
                (struct parameter_order_item){ find(tensors, n, roles[i], 0),
                                               gate ? find(tensors, n, ROLE_EXPERT_UP, 0) : NULL,
                                               experts };
    }
    return n_roles;
}

/* Add what roles[0 .. n_roles - 1] are of one layer. */
static void add_layer(struct order_list *l, const char *roles, int n_roles,
                      const struct tensor *tensors, int n)
{
    for (int i = 0; i < n_roles;) {
        if (tensor_role_is_of_expert((enum tensor_role)roles[i]))
            i += add_experts(l, roles + i, tensors, n);
        else
            add(l, find(tensors, n, roles[i++], 0));
    }
}

/* Add the layers, whose tensors are in order. Returns how many roles they have. */
static int add_layers(struct order_list *l, const char *roles, const struct tensor *tensors, int n)
{
    int n_roles = 0, at = 0, end;

    while (tensor_role_is_of_layer((enum tensor_role)roles[n_roles]))
        n_roles++;
    while (at < n && tensors[at].layer < 0)
        at++;
    for (; at < n && tensors[at].layer >= 0; at = end) {
        for (end = at; end < n && tensors[end].layer == tensors[at].layer;)
            end++;
        add_layer(l, roles, n_roles, tensors + at, end - at);
    }
    return n_roles;
}

tp_status parameter_order_list(struct parameter_order_item **out, int *n_out,
                               const struct parameter_order *o, const struct tensor *tensors, int n,
                               struct arena *arena, struct tp_err *err)
{
    struct order_list l = { .order = o };

    l.out = arena_array(arena, (size_t)n + 1, sizeof *l.out);
    if (!l.out)
        return tp_fail(err, TP_E_NOMEM, "no memory for a list of %d tensors", n);
    for (const char *r = o->roles; *r != ROLE_NONE;) {
        if (tensor_role_is_of_layer((enum tensor_role) * r))
            r += add_layers(&l, r, tensors, n);
        else
            add(&l, find(tensors, n, *r++, 0));
    }
    *out = l.out;
    *n_out = l.n_out;
    return TP_OK;
}

int parameter_order_shape(int64_t shape[BOX_NDIM_MAX], const struct parameter_order_item *p)
{
    const struct tensor *t = p->tensor;

    if (!p->experts) {
        memcpy(shape, t->shape, sizeof t->shape);
        return t->ndim;
    }
    shape[0] = p->experts;
    shape[1] = t->shape[0] + (p->up ? p->up->shape[0] : 0);
    shape[2] = t->shape[1];
    return 3;
}
