/* trainer/data_parallel/fsdp_units.c - see trainer/data_parallel/fsdp_units.h. */
#include "trainer/data_parallel/fsdp_units.h"

enum { NONE = -1 };

/* ---- the order ---- */

/* Two visits of the same unit in a row are one, because it is gathered once. */
static void visit(struct fsdp_units *u, int unit)
{
    if (unit != NONE && (u->n_visits == 0 || u->visits[u->n_visits - 1] != unit))
        u->visits[u->n_visits++] = unit;
}

static void visit_stage(struct fsdp_units *u, const struct fsdp_units_stage *s, bool forward)
{
    visit(u, forward ? s->before : s->after);
    for (int i = 0; i < s->n; i++)
        visit(u, s->layers[forward ? i : s->n - 1 - i]);
}

tp_status fsdp_units_init(struct fsdp_units *u, const struct params *p,
                          const struct fsdp_units_stage *stages, const struct schedule_rank *ops,
                          struct arena *arena, struct tp_err *err)
{
    size_t most = 0;

    for (int i = 0; i < ops->n_ops; i++)
        most += (size_t)stages[ops->ops[i].vstage].n + 1;
    *u = (struct fsdp_units){ .params = p, .held = NONE, .coming = NONE, .leaving = NONE };
    if (!p->sharded)
        return TP_OK;
    u->visits = arena_array(arena, most, sizeof *u->visits);
    if (!u->visits)
        return tp_fail(err, TP_E_NOMEM, "no memory for a list of %zu gathers", most);
    for (int i = 0; i < ops->n_ops; i++)
        visit_stage(u, &stages[ops->ops[i].vstage], ops->ops[i].kind == OP_FORWARD);
    u->next = u->n_visits;
    return TP_OK;
}

void fsdp_units_open(struct fsdp_units *u, struct bucket_transfer *weights,
                     struct bucket_transfer *grads)
{
    u->weights = weights;
    u->grads = grads;
}

/* ---- weights ---- */

static void start_gather(struct fsdp_units *u, int unit)
{
    for (int b = unit; b < params_unit_end(u->params, unit); b++)
        bucket_transfer_send(u->weights, b);
    u->coming = unit;
}

/* Start gathering the unit of the next visit, if there is one. */
static void start_next(struct fsdp_units *u)
{
    if (u->next < u->n_visits)
        start_gather(u, u->visits[u->next++]);
}

void fsdp_units_begin(struct fsdp_units *u)
{
    const struct params *p = u->params;

    if (!p->sharded)
        return;
    device_fill(p->k.queue, p->owned_grad, 0, p->n_owned * (int64_t)sizeof *p->owned_grad);
    u->held = NONE;
    u->next = 0;
    start_next(u);
}

void fsdp_units_need(struct fsdp_units *u, int unit)
{
    const struct params *p = u->params;
    struct tp_err err;

    if (!p->sharded || unit == u->held)
        return;
    if (u->coming == NONE) /* outside a step */
        start_gather(u, unit);
    if (u->coming != unit) {
        tp_fail(&err, TP_E_INTERNAL, "zero3 gathered unit %d, but unit %d is needed", u->coming,
                unit);
        device_fail(p->k.queue->device, &err);
    }
    for (int b = unit; b < params_unit_end(p, unit); b++)
        bucket_transfer_receive(u->weights, b);
    u->held = unit;
    u->coming = NONE;
    start_next(u);
}

/* ---- gradients ---- */

void fsdp_units_clear(const struct fsdp_units *u, int unit)
{
    const struct params *p = u->params;
    const struct param_bucket *last;

    if (!p->sharded)
        return;
    last = &p->buckets[params_unit_end(p, unit) - 1];
    for (int i = p->buckets[unit].first; i < last->first + last->n; i++) {
        const struct param *q = &p->list[i];

        if (q->summed)
            device_fill(p->k.queue, params_grad(p, q), 0, q->n * (int64_t)sizeof(float));
    }
}

/* Where --same-bits sums an entry's gradients of a pass; n 0: the pass has none. The gradients of a
 * tied head and of its embedding are kept apart. */
static struct pairwise_range place_of(const struct fsdp_units *u, const struct param *q)
{
    const struct params *p = u->params;
    const struct param *table = &p->list[p->table];
    struct pairwise_range own = { q->own.to, q->own.n };

    if (p->head.n == 0 || u->leaving_pass == FSDP_UNITS_LAYER)
        return own;
    if (u->leaving_pass == FSDP_UNITS_AFTER && q->tensor == table->tensor)
        own.at += p->head.at - table->own.to;
    else if (q->after != (u->leaving_pass == FSDP_UNITS_AFTER))
        own.n = 0;
    return own;
}

/* Add the gradients of a microbatch, which have arrived in `part`, to this rank's sums. */
static void add_to_sums(struct fsdp_units *u, const struct param_bucket *b, const float *part)
{
    const struct params *p = u->params;

    for (int i = b->first; i < b->first + b->n; i++) {
        const struct param *q = &p->list[i];
        const float *x = part + q->own.packed;

        if (p->same_bits)
            pairwise_sum_add(&p->pairwise, place_of(u, q), u->leaving_group, x, &p->k);
        else
            p->k.ops->sum_add(p->k.queue,
                              &(struct sum_add){ params_owned(p, q).grad, x, 1, q->own.n, 0, 0 });
    }
}

/* Receive the gradients that were sent last and add them to this rank's sums. */
static void finish_reduce(struct fsdp_units *u)
{
    if (u->leaving == NONE)
        return;
    for (int b = u->leaving; b < params_unit_end(u->params, u->leaving); b++)
        add_to_sums(u, &u->params->buckets[b], bucket_transfer_receive(u->grads, b));
    u->leaving = NONE;
}

void fsdp_units_reduce(struct fsdp_units *u, int unit, enum fsdp_units_pass pass, int64_t group)
{
    if (!u->params->sharded)
        return;
    finish_reduce(u);
    u->leaving_pass = pass;
    u->leaving_group = group;
    for (int b = unit; b < params_unit_end(u->params, unit); b++)
        bucket_transfer_send(u->grads, b);
    u->leaving = unit;
}

void fsdp_units_end(struct fsdp_units *u)
{
    if (!u->params->sharded)
        return;
    u->held = NONE; /* the weights are about to change */
    finish_reduce(u);
}
