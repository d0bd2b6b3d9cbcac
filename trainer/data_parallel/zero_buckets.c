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

tp_status zero_open(struct zero_way *way, const struct params *p, bool weights, struct tp_err *err)
{
    tp_status st = TP_OK;

    *way = (struct zero_way){ .weights = weights };
    for (int i = 0; i < p->n_packs && p->n_owners > 1 && !st; i++) {
        st = device_event_open(p->comm_queue->device, &way->lanes[i].packed, err);
        if (!st)
            st = device_event_open(p->comm_queue->device, &way->lanes[i].sent, err);
    }
    return st;
}

void zero_close(struct zero_way *way)
{
    for (int i = 0; i < PARAMS_PACKS_MAX; i++) {
        device_event_close(way->lanes[i].packed);
        device_event_close(way->lanes[i].sent);
    }
}

/* Wait for what is in the lane, if anything, and put it in its place. */
static void land(const struct params *p, const struct parallel *par, struct zero_way *way, int lane)
{
    struct zero_lane *x = &way->lanes[lane];
    const struct bucket *b = x->bucket;

    if (!b)
        return;
    x->bucket = NULL;
    device_wait(p->k.queue, x->sent);
    if (way->weights)
        zero_unpack_weights(p, b, pack_of(p, lane));
    else
        unpack_sums(p, b, pack_of(p, lane) + comm_rank(par->dp) * b->each);
}

void zero_send(const struct params *p, const struct parallel *par, struct zero_way *way, int bucket)
{
    const struct bucket *b = &p->buckets[bucket];
    int me = comm_rank(par->dp), lane = bucket % p->n_packs;
    struct zero_lane *x = &way->lanes[lane];
    float *pack = pack_of(p, lane), *part = pack + me * b->each;

    land(p, par, way, lane);
    if (way->weights)
        zero_pack_weights(p, b, me, pack);
    else
        zero_pack_grads(p, b, pack);
    device_record(p->k.queue, x->packed);
    device_wait(p->comm_queue, x->packed);
    if (way->weights) {
        comm_all_gather(par->dp, p->comm_queue, pack, pack + me * b->weights_each,
                        b->weights_each * (int64_t)sizeof *pack, DTYPE_U8);
    } else {
        comm_reduce_scatter(par->dp, p->comm_queue, part, pack, b->each, DTYPE_F32);
        if (par->twins)
            comm_all_reduce(par->twins, p->comm_queue, part, b->each, DTYPE_F32, COMM_SUM);
    }
    device_record(p->comm_queue, x->sent);
    x->bucket = b;
}

void zero_land(const struct params *p, const struct parallel *par, struct zero_way *way)
{
    for (int lane = 0; lane < p->n_packs; lane++)
        land(p, par, way, lane);
}

void zero_start(struct params *p, const struct parallel *par, struct zero_way *weights)
{
    params_round(p);
    if (p->n_owners == 1 || p->sharded)
        return;
    for (int i = 0; i < p->n_buckets; i++)
        zero_send(p, par, weights, i);
    zero_land(p, par, weights);
}
