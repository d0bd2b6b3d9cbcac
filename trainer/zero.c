/* trainer/zero.c - see trainer/zero.h. */
#include "trainer/zero.h"

#include <string.h>

#include "kernels/bias.h"
#include "kernels/cast.h"

static void copy(void *to, const void *from, int64_t n_bytes)
{
    if (n_bytes && to != from)
        memcpy(to, from, (size_t)n_bytes);
}

static const struct piece *piece_of(const struct params *p, int owner, int i)
{
    return &p->pieces[owner * p->n + i];
}

void zero_pack_grads(const struct params *p, const struct bucket *b, float *pack)
{
    for (int owner = 0; owner < p->n_owners; owner++)
        for (int i = b->first; i < b->first + b->n; i++) {
            const struct piece *x = piece_of(p, owner, i);

            copy(pack + owner * b->each + x->packed, p->grad + x->from, x->n * 4);
        }
}

/* This rank's sums, from its part of pack to their place. */
static void unpack_sums(const struct params *p, const struct bucket *b, const float *part)
{
    for (int i = b->first; i < b->first + b->n; i++) {
        const struct param *q = &p->list[i];

        copy(params_owned(p, q).grad, part + q->own.packed, q->own.n * 4);
    }
}

void zero_add_sums(const struct params *p, const struct bucket *b, const float *part)
{
    for (int i = b->first; i < b->first + b->n; i++) {
        const struct param *q = &p->list[i];

        residual_add(params_owned(p, q).grad, part + q->own.packed, NULL, 1, q->own.n);
    }
}

void zero_pack_weights(const struct params *p, const struct bucket *b, int me, float *pack)
{
    char *part = (char *)(pack + me * b->weights_each);

    for (int i = b->first; i < b->first + b->n; i++) {
        const struct param *q = &p->list[i];
        const struct owned o = params_owned(p, q);
        bool narrow = q->type == DTYPE_BF16;

        copy(part + q->own.packed_bytes, narrow ? (void *)o.value_bf16 : o.value,
             o.n * dtype_bytes(q->type));
    }
}

/* A piece to where layers read it. Of what they read in fp32 under zero1 in bf16 everyone keeps the
 * rounded value too, for saving. */
static void unpack_piece(const struct params *p, const struct param *q, const struct piece *x,
                         const void *packed)
{
    int64_t e = dtype_bytes(q->type), n_bytes = x->n * e;
    char *entry = (char *)(uintptr_t)params_weight(p, q);

    copy(entry + (x->from - q->at) * e, packed, n_bytes);
    if (q->type != p->dtype && !p->sharded)
        cast(p->value_bf16 + x->from, DTYPE_BF16, packed, DTYPE_F32, x->n);
}

void zero_unpack_weights(const struct params *p, const struct bucket *b, const float *pack)
{
    for (int owner = 0; owner < p->n_owners; owner++) {
        const char *part = (const char *)(pack + owner * b->weights_each);

        for (int i = b->first; i < b->first + b->n; i++) {
            const struct piece *x = piece_of(p, owner, i);

            unpack_piece(p, &p->list[i], x, part + x->packed_bytes);
        }
    }
}

tp_status zero_reduce(const struct params *p, const struct parallel *par, struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int i = 0; i < p->n_buckets; i++) {
        const struct bucket *b = &p->buckets[i];
        float *part = p->pack + comm_rank(par->dp) * b->each;

        zero_pack_grads(p, b, p->pack);
        TP_TRY(comm_reduce_scatter(par->dp, part, p->pack, b->each, COMM_F32, err));
        if (comm_size(par->cp) > 1)
            TP_TRY(comm_all_reduce(par->cp, part, b->each, COMM_F32, COMM_SUM, err));
        unpack_sums(p, b, part);
    }
done:
    return st;
}

tp_status zero_gather(const struct params *p, struct comm *dp, struct tp_err *err)
{
    int me = comm_rank(dp);
    tp_status st = TP_OK;

    for (int i = 0; i < p->n_buckets && !st; i++) {
        const struct bucket *b = &p->buckets[i];
        float *part = p->pack + me * b->weights_each;

        zero_pack_weights(p, b, me, p->pack);
        st = comm_all_gather(dp, p->pack, part, b->weights_each, COMM_F32, err);
        if (!st)
            zero_unpack_weights(p, b, p->pack);
    }
    return st;
}

tp_status zero_start(struct params *p, struct comm *dp, struct tp_err *err)
{
    params_round(p);
    return p->n_owners > 1 && !p->sharded ? zero_gather(p, dp, err) : TP_OK;
}
