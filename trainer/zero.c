/* trainer/zero.c - see trainer/zero.h. */
#include "trainer/zero.h"

#include <string.h>

#include "kernels/cast.h"

static void copy(float *to, const float *from, int64_t n)
{
    if (n)
        memcpy(to, from, (size_t)n * sizeof *to);
}

float *zero_gradients(const struct params *p, const struct comm *dp)
{
    return p->pack + comm_rank(dp) * p->n_moments;
}

tp_status zero_reduce(const struct params *p, struct comm *dp, struct tp_err *err)
{
    for (int owner = 0; owner < p->n_owners; owner++)
        for (int i = 0; i < p->n; i++) {
            const struct piece *x = &p->pieces[owner * p->n + i];

            copy(p->pack + owner * p->n_moments + x->to, p->grad + x->from, x->n);
        }
    return comm_reduce_scatter(dp, zero_gradients(p, dp), p->pack, p->n_moments, COMM_F32, err);
}

tp_status zero_gather(const struct params *p, struct comm *dp, struct tp_err *err)
{
    float *mine = zero_gradients(p, dp); /* which are used up */
    tp_status st;

    for (int i = 0; i < p->n; i++)
        copy(mine + p->list[i].own.to, p->value + p->list[i].own.from, p->list[i].own.n);
    if ((st = comm_all_gather(dp, p->pack, mine, p->n_moments, COMM_F32, err)))
        return st;
    for (int owner = 0; owner < p->n_owners; owner++)
        for (int i = 0; i < p->n; i++) {
            const struct piece *x = &p->pieces[owner * p->n + i];

            if (owner == comm_rank(dp))
                continue;
            copy(p->value + x->from, p->pack + owner * p->n_moments + x->to, x->n);
            if (p->value_bf16)
                cast(p->value_bf16 + x->from, DTYPE_BF16, p->value + x->from, DTYPE_F32, x->n);
        }
    return TP_OK;
}
