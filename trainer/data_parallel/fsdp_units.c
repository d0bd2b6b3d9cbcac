/* trainer/data_parallel/fsdp_units.c - see trainer/data_parallel/fsdp_units.h. */
#include "trainer/data_parallel/fsdp_units.h"

#include "trainer/data_parallel/zero_buckets.h"

enum { NONE = -1 };

static const struct bucket *bucket_of(const struct units *u, int unit)
{
    return &u->params->buckets[unit];
}

/* ---- the order ---- */

/* A unit that is used again at once is gathered once. */
static void visit(struct units *u, int unit)
{
    if (u->n_visits == 0 || u->visits[u->n_visits - 1] != unit)
        u->visits[u->n_visits++] = unit;
}

static void visit_chunk(struct units *u, const struct net *n, const struct op *op)
{
    const struct chunk *c = &n->chunks[op->chunk];
    bool forward = op->kind == OP_FORWARD;

    if (forward && n->is_first && op->chunk == 0)
        visit(u, n->first_unit);
    if (!forward && n->is_last && op->chunk == n->n_chunks - 1)
        visit(u, n->last_unit);
    for (int i = 0; i < c->n; i++)
        visit(u, n->layers[c->first + (forward ? i : c->n - 1 - i)].unit);
}

tp_status units_init(struct units *u, const struct params *p, const struct net *n,
                     const struct schedule_rank *ops, struct arena *arena, struct tp_err *err)
{
    size_t most = (size_t)ops->n_ops * ((size_t)n->n_layers + 1);

    *u = (struct units){ .params = p, .held = NONE, .coming = NONE, .leaving = NONE };
    if (!p->sharded)
        return TP_OK;
    u->visits = arena_array(arena, most, sizeof *u->visits);
    if (!u->visits)
        return tp_fail(err, TP_E_NOMEM, "no memory for a list of %zu gathers", most);
    for (int i = 0; i < ops->n_ops; i++)
        visit_chunk(u, n, &ops->ops[i]);
    u->next = u->n_visits;
    return TP_OK;
}

/* ---- weights ---- */

static tp_status start_gather(struct units *u, int unit, struct tp_err *err)
{
    const struct bucket *b = bucket_of(u, unit);
    float *pack = u->params->pack;
    int me = comm_rank(u->dp);

    zero_pack_weights(u->params, b, me, pack);
    u->coming = unit;
    return comm_start_all_gather(u->dp, pack, pack + me * b->weights_each, b->weights_each,
                                 COMM_F32, &u->gather, err);
}

/* The next visit's, if there is one. */
static tp_status start_next(struct units *u, struct tp_err *err)
{
    return u->next < u->n_visits ? start_gather(u, u->visits[u->next++], err) : TP_OK;
}

tp_status units_begin(struct units *u, struct tp_err *err)
{
    const struct params *p = u->params;

    if (!p->sharded)
        return TP_OK;
    device_fill(p->k.queue, p->owned_grad, 0, p->n_owned * (int64_t)sizeof *p->owned_grad);
    u->held = NONE;
    u->next = 0;
    return start_next(u, err);
}

tp_status units_need(struct units *u, int unit, struct tp_err *err)
{
    tp_status st = TP_OK;

    if (!u->params->sharded || unit == u->held)
        return TP_OK;
    if (u->coming == NONE) /* outside a step */
        TP_TRY(start_gather(u, unit, err));
    if (u->coming != unit)
        return tp_fail(err, TP_E_INTERNAL, "zero3 gathers unit %d where %d is needed", u->coming,
                       unit);
    TP_TRY(comm_finish(u->dp, &u->gather, err));
    zero_unpack_weights(u->params, bucket_of(u, unit), u->params->pack);
    u->held = unit;
    u->coming = NONE;
    TP_TRY(start_next(u, err));
done:
    return st;
}

/* ---- gradients ---- */

void units_clear(const struct units *u, int unit)
{
    const struct params *p = u->params;

    if (!p->sharded)
        return;
    for (int i = 0; i < bucket_of(u, unit)->n; i++) {
        const struct param *q = &p->list[bucket_of(u, unit)->first + i];

        if (q->summed)
            device_fill(p->k.queue, params_grad(p, q), 0, q->n * (int64_t)sizeof(float));
    }
}

/* Where --same-bits keeps an entry's gradients of a pass, n 0: the pass has none of it. Those of a
 * tied head are apart from its embedding's. */
static struct range place_of(const struct units *u, const struct param *q)
{
    const struct params *p = u->params;
    const struct param *table = &p->list[p->table];
    struct range own = { q->own.to, q->own.n };

    if (p->head.n == 0 || u->leaving_pass == UNITS_LAYER)
        return own;
    if (u->leaving_pass == UNITS_AFTER && q->tensor == table->tensor)
        own.at += p->head.at - table->own.to;
    else if (q->after != (u->leaving_pass == UNITS_AFTER))
        own.n = 0;
    return own;
}

/* The gradients of a microbatch, from this rank's part of a pack to its sums. */
static void take_sums(struct units *u, const struct bucket *b, const float *part)
{
    const struct params *p = u->params;

    if (!p->same_bits) {
        zero_add_sums(p, b, part);
        return;
    }
    for (int i = b->first; i < b->first + b->n; i++)
        fold_add(&p->fold, place_of(u, &p->list[i]), u->leaving_leaf, part + p->list[i].own.packed,
                 &p->k);
}

/* Until the gradients that are under way are in their owners' sums. */
static tp_status finish_reduce(struct units *u, struct tp_err *err)
{
    const struct bucket *b;
    tp_status st;

    if (u->leaving == NONE)
        return TP_OK;
    if ((st = comm_finish(u->dp, &u->reduce, err)))
        return st;
    b = bucket_of(u, u->leaving);
    take_sums(u, b, u->params->grad_pack + comm_rank(u->dp) * b->each);
    u->leaving = NONE;
    return TP_OK;
}

static tp_status start_reduce(struct units *u, int unit, struct tp_err *err)
{
    const struct bucket *b = bucket_of(u, unit);
    float *pack = u->params->grad_pack, *part = pack + comm_rank(u->dp) * b->each;

    zero_pack_grads(u->params, b, pack);
    u->leaving = unit;
    return comm_start_reduce_scatter(u->dp, part, pack, b->each, COMM_F32, &u->reduce, err);
}

tp_status units_reduce(struct units *u, int unit, enum units_pass pass, int64_t leaf,
                       struct tp_err *err)
{
    tp_status st = u->params->sharded ? finish_reduce(u, err) : TP_OK;

    u->leaving_pass = pass;
    u->leaving_leaf = leaf;
    return st || !u->params->sharded ? st : start_reduce(u, unit, err);
}

tp_status units_end(struct units *u, struct tp_err *err)
{
    if (!u->params->sharded)
        return TP_OK;
    u->held = NONE; /* the weights are about to change */
    return finish_reduce(u, err);
}
