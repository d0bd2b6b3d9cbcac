/* trainer/zero.c - see trainer/zero.h. */
#include "trainer/zero.h"

#include <string.h>

#include "kernels/cast.h"

static void copy(float *to, const float *from, int64_t n)
{
    if (n)
        memcpy(to, from, (size_t)n * sizeof *to);
}

/* What `owner` owns of a bucket: from `span` to its part of pack, or back. */
static void move(const struct params *p, const struct bucket *b, int owner, float *span, bool back)
{
    float *part = p->pack + owner * b->each;

    for (int i = b->first; i < b->first + b->n; i++) {
        const struct piece *x = &p->pieces[owner * p->n + i];
        float *in = span + x->from, *packed = part + x->packed;

        copy(back ? in : packed, back ? packed : in, x->n);
    }
}

tp_status zero_reduce(const struct params *p, const struct parallel *par, struct tp_err *err)
{
    int me = comm_rank(par->dp);
    tp_status st = TP_OK;

    for (int i = 0; i < p->n_buckets; i++) {
        const struct bucket *b = &p->buckets[i];
        float *part = p->pack + me * b->each;

        for (int owner = 0; owner < p->n_owners; owner++)
            move(p, b, owner, p->grad, false);
        TP_TRY(comm_reduce_scatter(par->dp, part, p->pack, b->each, COMM_F32, err));
        if (comm_size(par->cp) > 1)
            TP_TRY(comm_all_reduce(par->cp, part, b->each, COMM_F32, COMM_SUM, err));
        move(p, b, me, p->grad, true);
    }
done:
    return st;
}

/* Round the masters that came from other ranks. */
static void round_bucket(const struct params *p, const struct bucket *b)
{
    for (int i = b->first; p->value_bf16 && i < b->first + b->n; i++)
        cast(p->value_bf16 + p->list[i].at, DTYPE_BF16, p->value + p->list[i].at, DTYPE_F32,
             p->list[i].n);
}

tp_status zero_gather(const struct params *p, struct comm *dp, struct tp_err *err)
{
    int me = comm_rank(dp);
    tp_status st;

    for (int i = 0; i < p->n_buckets; i++) {
        const struct bucket *b = &p->buckets[i];

        move(p, b, me, p->value, false);
        if ((st = comm_all_gather(dp, p->pack, p->pack + me * b->each, b->each, COMM_F32, err)))
            return st;
        for (int owner = 0; owner < p->n_owners; owner++)
            if (owner != me)
                move(p, b, owner, p->value, true);
        round_bucket(p, b);
    }
    return TP_OK;
}
