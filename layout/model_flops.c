/* layout/model_flops.c - see layout/model_flops.h. */
#include "layout/model_flops.h"

#include "layout/family.h"

int64_t model_flops_params(const struct model *m)
{
    int64_t layer = 0;

    for (const struct family_tensor *t = family_of(m)->tensors; t->role != ROLE_NONE; t++)
        if (tensor_role_is_of_layer(t->role) && t->shape[1] != DIM_NONE)
            layer += family_dim_size(t->shape[0], m) * family_dim_size(t->shape[1], m) *
                     (tensor_role_is_of_expert(t->role) ? m->experts_per_token : 1);
    return m->layers * layer + m->hidden * m->vocab;
}

double model_flops_step(const struct model *m, int64_t tokens, int64_t seq)
{
    double attention = 12.0 * m->layers * m->heads * (double)m->head_dim * (double)seq;

    return (double)tokens * (6.0 * (double)model_flops_params(m) + attention);
}
