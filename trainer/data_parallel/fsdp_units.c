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

tp_status units_open(struct units *u, struct comm *dp, struct tp_err *err)
{
    struct device_event **const events[] = { &u->packed, &u->gathered, &u->reduced };
    tp_status st = TP_OK;

    u->dp = dp;
    for (size_t i = 0; i < sizeof events / sizeof *events && u->params->sharded && !st; i++)
        st = device_event_open(u->params->comm_queue->device, events[i], err);
    return st;
}

void units_close(struct units *u)
{
    device_event_close(u->packed);
    device_event_close(u->gathered);
    device_event_close(u->reduced);
}

/* What is queued for sending from here on follows what was computed so far. */
static void follow(struct units *u)
{
    device_record(u->params->k.queue, u->packed);
    device_wait(u->params->comm_queue, u->packed);
}

/* ---- weights ---- */

static void start_gather(struct units *u, int unit)
{
    const struct params *p = u->params;
    const struct bucket *b = bucket_of(u, unit);
    int me = comm_rank(u->dp);

    zero_pack_weights(p, b, me, p->pack);
    u->coming = unit;
    follow(u);
    comm_all_gather(u->dp, p->comm_queue, p->pack, p->pack + me * b->weights_each,
                    b->weights_each * (int64_t)sizeof *p->pack, DTYPE_U8);
    device_record(p->comm_queue, u->gathered);
}

/* The next visit's, if there is one. */
static void start_next(struct units *u)
{
    if (u->next < u->n_visits)
        start_gather(u, u->visits[u->next++]);
}

void units_begin(struct units *u)
{
    const struct params *p = u->params;

    if (!p->sharded)
        return;
    device_fill(p->k.queue, p->owned_grad, 0, p->n_owned * (int64_t)sizeof *p->owned_grad);
    u->held = NONE;
    u->next = 0;
    start_next(u);
}

void units_need(struct units *u, int unit)
{
    const struct params *p = u->params;
    struct tp_err err;

    if (!p->sharded || unit == u->held)
        return;
    if (u->coming == NONE) /* outside a step */
        start_gather(u, unit);
    if (u->coming != unit) {
        tp_fail(&err, TP_E_INTERNAL, "zero3 gathers unit %d where %d is needed", u->coming, unit);
        device_fail(p->k.queue->device, &err);
    }
    device_wait(p->k.queue, u->gathered);
    zero_unpack_weights(p, bucket_of(u, unit), p->pack);
    u->held = unit;
    u->coming = NONE;
    start_next(u);
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
static void finish_reduce(struct units *u)
{
    const struct bucket *b;

    if (u->leaving == NONE)
        return;
    device_wait(u->params->k.queue, u->reduced);
    b = bucket_of(u, u->leaving);
    take_sums(u, b, u->params->grad_pack + comm_rank(u->dp) * b->each);
    u->leaving = NONE;
}

static void start_reduce(struct units *u, int unit)
{
    const struct params *p = u->params;
    const struct bucket *b = bucket_of(u, unit);
    float *pack = p->grad_pack, *part = pack + comm_rank(u->dp) * b->each;

    zero_pack_grads(p, b, pack);
    u->leaving = unit;
    follow(u);
    comm_reduce_scatter(u->dp, p->comm_queue, part, pack, b->each, DTYPE_F32);
    device_record(p->comm_queue, u->reduced);
}

void units_reduce(struct units *u, int unit, enum units_pass pass, int64_t leaf)
{
    if (!u->params->sharded)
        return;
    finish_reduce(u);
    u->leaving_pass = pass;
    u->leaving_leaf = leaf;
    start_reduce(u, unit);
}

void units_end(struct units *u)
{
    if (!u->params->sharded)
        return;
    u->held = NONE; /* the weights are about to change */
    finish_reduce(u);
}
