/* trainer/data_parallel/params_storage.c - the memory of the parameters; see
 * trainer/data_parallel/params.h. */
#include <string.h>

#include "trainer/data_parallel/params.h"

enum { FLOAT = sizeof(float) };

_Static_assert((int)PARAM_LEVELS_MAX == PAIRWISE_LEVELS_MAX, "a span for each level");

void params_take(struct params *p, const struct param_sizes *z, struct buffer_pools *pools)
{
    struct param_spans s = { 0 };

    param_spans_take(&s, z, pools);
    p->value = s.value;
    p->value_bf16 = s.value_bf16;
    p->vectors = s.vectors;
    p->grad = s.grad;
    p->partial = s.partial;
    p->owned = s.owned;
    p->owned_bf16 = s.owned_bf16;
    p->owned_grad = s.owned_grad;
    p->exp_avg = s.exp_avg;
    p->exp_avg_sq = s.exp_avg_sq;
    p->pack = s.pack;
    p->pack_each = z->pack_floats;
    p->grad_pack = s.grad_pack;
    p->expert_pack = s.expert_pack;
    p->expert_grad_pack = s.expert_grad_pack;
    p->places = s.places;
    p->rows = s.rows;
    p->squares = s.squares;
    p->pairwise =
        (struct pairwise_sum){ .sum = p->sharded ? s.owned_grad : s.grad, .levels = z->n_levels };
    for (int i = 0; i < z->n_levels; i++)
        p->pairwise.level[i] = s.level[i];
}

const void *params_weight(const struct params *p, const struct param *q)
{
    if (q->type == DTYPE_BF16)
        return p->value_bf16 + q->at;
    return p->vectors ? p->vectors + q->vector_at : p->value + q->at;
}

const uint16_t *params_rounded(const struct params *p, const struct param *q)
{
    return p->value_bf16 && !p->sharded ? p->value_bf16 + q->at : NULL;
}

float *params_grad(const struct params *p, const struct param *q)
{
    return p->grad + q->at;
}

struct param_owned params_owned(const struct params *p, const struct param *q)
{
    struct param_owned o = { .n = q->own.n,
                             .value = p->owned ? p->owned + q->own.to : p->value + q->own.from,
                             .grad = p->sharded ? p->owned_grad + q->own.to : p->grad + q->own.grad,
                             .exp_avg = p->exp_avg + q->own.to,
                             .exp_avg_sq = p->exp_avg_sq + q->own.to };

    if (p->dtype == DTYPE_BF16)
        o.value_bf16 = p->sharded ? p->owned_bf16 + q->own.to : p->value_bf16 + q->own.from;
    return o;
}

struct param_sums params_sums(const struct params *p, const struct param *q)
{
    if (p->sharded)
        return (struct param_sums){ p->owned_grad + q->own.to, q->own.n };
    return (struct param_sums){ p->grad + q->at, q->n };
}

void params_round(const struct params *p)
{
    for (int i = 0; p->dtype == DTYPE_BF16 && i < p->n; i++) {
        struct param_owned o = params_owned(p, &p->list[i]);

        p->k.ops->cast(p->k.queue,
                       &(struct cast){ o.value_bf16, DTYPE_BF16, o.value, DTYPE_F32, o.n });
    }
}

/* Without zero3, weights are there as a whole. Everything else is only what this rank owns. */
void *params_place(const struct params *p, int i, const char *group, struct box *within,
                   enum dtype *dtype)
{
    const struct param *q = &p->list[i];
    const struct param_owned o = params_owned(p, q);
    bool bf16 = p->dtype == DTYPE_BF16;

    *dtype = DTYPE_F32;
    *within = q->own.box;
    if (!strcmp(group, GROUP_EXP_AVG))
        return o.exp_avg;
    if (!strcmp(group, GROUP_EXP_AVG_SQ))
        return o.exp_avg_sq;
    if (!strcmp(group, GROUP_MASTER))
        return bf16 ? o.value : NULL;
    if (strcmp(group, GROUP_PARAM) != 0)
        return NULL;
    *dtype = p->dtype;
    if (p->sharded)
        return bf16 ? (void *)o.value_bf16 : o.value;
    *within = q->box;
    return bf16 ? (void *)(p->value_bf16 + q->at) : p->value + q->at;
}

void params_copy_to_holders(const struct params *p)
{
    for (int i = 0; i < p->n; i++) {
        const struct param_owned to = params_owned(p, &p->list[i]);
        const struct param_owned from = params_owned(p, &p->list[params_first_holder(p, i)]);
        int64_t bytes = to.n * FLOAT;

        device_copy(p->k.queue, to.value, from.value, bytes);
        device_copy(p->k.queue, to.exp_avg, from.exp_avg, bytes);
        device_copy(p->k.queue, to.exp_avg_sq, from.exp_avg_sq, bytes);
    }
}
