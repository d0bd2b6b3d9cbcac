/* trainer/data_parallel/zero_buckets.c - see trainer/data_parallel/zero_buckets.h. */
#include "trainer/data_parallel/zero_buckets.h"

static const struct piece *piece_of(const struct params *p, int owner, int i)
{
    return &p->pieces[owner * p->n + i];
}

void zero_pack_grads(const struct params *p, const struct bucket *b, float *pack)
{
    for (int owner = 0; owner < p->n_owners; owner++)
        for (int i = b->first; i < b->first + b->n; i++) {
            const struct piece *x = piece_of(p, owner, i);

            device_copy(p->k.queue, pack + owner * b->each + x->packed, p->grad + x->from,
                        x->n * 4);
        }
}

/* This rank's sums, from its part of pack to their place. */
static void unpack_sums(const struct params *p, const struct bucket *b, const float *part)
{
    for (int i = b->first; i < b->first + b->n; i++) {
        const struct param *q = &p->list[i];

        device_copy(p->k.queue, params_owned(p, q).grad, part + q->own.packed, q->own.n * 4);
    }
}

void zero_add_sums(const struct params *p, const struct bucket *b, const float *part)
{
    for (int i = b->first; i < b->first + b->n; i++) {
        const struct param *q = &p->list[i];

        p->k.ops->sum_add(p->k.queue, &(struct sum_add){ params_owned(p, q).grad,
                                                         part + q->own.packed, 1, q->own.n, 0, 0 });
    }
}

void zero_pack_weights(const struct params *p, const struct bucket *b, int me, float *pack)
{
    char *part = (char *)(pack + me * b->weights_each);

    for (int i = b->first; i < b->first + b->n; i++) {
        const struct param *q = &p->list[i];
        const struct owned o = params_owned(p, q);
        bool narrow = q->type == DTYPE_BF16;

        device_copy(p->k.queue, part + q->own.packed_bytes, narrow ? (void *)o.value_bf16 : o.value,
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

    device_copy(p->k.queue, entry + (x->from - q->at) * e, packed, n_bytes);
    if (q->type != p->dtype && !p->sharded)
        p->k.ops->cast(p->k.queue, &(struct cast){ p->value_bf16 + x->from, DTYPE_BF16, packed,
                                                   DTYPE_F32, x->n });
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

/* ---- on their way ---- */

static float *pack_of(const struct params *p, int lane)
{
    return p->pack + lane * p->pack_each;
}

/* Wait for what is in the lane, if anything, and put it in its place. */
static tp_status land(const struct params *p, const struct parallel *par, struct zero_way *way,
                      int lane, struct tp_err *err)
{
    struct zero_lane *x = &way->lanes[lane];
    const struct bucket *b = x->bucket;
    tp_status st;

    if (!b)
        return TP_OK;
    x->bucket = NULL;
    TP_TRY(comm_finish(par->dp, &x->job, err));
    if (par->twins)
        TP_TRY(comm_finish(par->twins, &x->twins, err));
    if (way->weights)
        zero_unpack_weights(p, b, pack_of(p, lane));
    else
        unpack_sums(p, b, pack_of(p, lane) + comm_rank(par->dp) * b->each);
done:
    return st;
}

tp_status zero_send(const struct params *p, const struct parallel *par, struct zero_way *way,
                    int bucket, struct tp_err *err)
{
    const struct bucket *b = &p->buckets[bucket];
    int me = comm_rank(par->dp), lane = bucket % p->n_packs;
    struct zero_lane *x = &way->lanes[lane];
    float *pack = pack_of(p, lane), *part = pack + me * b->each;
    tp_status st;

    TP_TRY(land(p, par, way, lane, err));
    if (way->weights) {
        zero_pack_weights(p, b, me, pack);
        TP_TRY(comm_start_all_gather(par->dp, pack, pack + me * b->weights_each, b->weights_each,
                                     COMM_F32, &x->job, err));
    } else {
        zero_pack_grads(p, b, pack);
        TP_TRY(comm_start_reduce_scatter(par->dp, part, pack, b->each, COMM_F32, &x->job, err));
        if (par->twins)
            TP_TRY(comm_start_all_reduce(par->twins, part, b->each, COMM_F32, COMM_SUM, &x->twins,
                                         err));
    }
    x->bucket = b;
done:
    return st;
}

tp_status zero_land(const struct params *p, const struct parallel *par, struct zero_way *way,
                    struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int lane = 0; lane < p->n_packs && !st; lane++)
        st = land(p, par, way, lane, err);
    return st;
}

tp_status zero_start(struct params *p, const struct parallel *par, struct tp_err *err)
{
    struct zero_way way = { .weights = true };
    tp_status st = TP_OK;

    params_round(p);
    if (p->n_owners == 1 || p->sharded)
        return TP_OK;
    for (int i = 0; i < p->n_buckets && !st; i++)
        st = zero_send(p, par, &way, i, err);
    return st ? st : zero_land(p, par, &way, err);
}
