/* trainer/data_parallel/grad_reduction.c - see trainer/data_parallel/grad_reduction.h. */
#include "trainer/data_parallel/grad_reduction.h"

#include "trainer/same_bits/same_bits.h"

/* ---- sums within a replica ---- */

/* Entries first .. end - 1 of heads that several tp ranks have: k and v of a layer, which lie side
 * by side, in one call. */
static tp_status reduce_shared(const struct params *p, int first, int end, struct comm *kv,
                               struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int i = first; i < end && !st; i++) {
        struct sums g = params_sums(p, &p->list[i]);

        if (!p->list[i].shared)
            continue;
        while (i + 1 < end && p->list[i + 1].shared &&
               params_sums(p, &p->list[i + 1]).at == g.at + g.n)
            g.n += params_sums(p, &p->list[++i]).n;
        st = comm_all_reduce(kv, g.at, g.n, COMM_F32, COMM_SUM, err);
    }
    return st;
}

/* Copy the gradients that are partial to p->partial, or back; returns how many elements. */
static int64_t move_partial(const struct params *p, int first, int end, bool back)
{
    float *at = p->partial;

    for (int i = first; i < end; i++) {
        const struct sums g = params_sums(p, &p->list[i]);

        if (!p->list[i].partial || !g.n)
            continue;
        device_copy(p->k.queue, back ? g.at : at, back ? at : g.at, g.n * (int64_t)sizeof *at);
        at += g.n;
    }
    return at - p->partial;
}

/* In one call: each is small. */
static tp_status reduce_partial(const struct params *p, int first, int end, struct comm *tp,
                                struct tp_err *err)
{
    int64_t n = move_partial(p, first, end, false);
    tp_status st;

    if (!n)
        return TP_OK;
    st = comm_all_reduce(tp, p->partial, n, COMM_F32, COMM_SUM, err);
    if (!st)
        move_partial(p, first, end, true);
    return st;
}

static tp_status reduce_within(const struct reduction *r, int first, int end, struct tp_err *err)
{
    const struct params *p = r->params;
    const struct parallel *par = r->parallel;
    tp_status st = TP_OK;

    if (p->same_bits) /* after the sum over replicas, in reduction_end */
        return TP_OK;
    if (par->kv)
        TP_TRY(reduce_shared(p, first, end, par->kv, err));
    if (p->n_partial)
        TP_TRY(reduce_partial(p, first, end, par->tp, err));
    if (p->tied >= first && p->tied < end) {
        struct sums g = params_sums(p, &p->list[p->tied]);

        TP_TRY(comm_all_reduce(par->ends, g.at, g.n, COMM_F32, COMM_SUM, err));
    }
done:
    return st;
}

int64_t reduction_partial_calls(const struct params *p)
{
    int64_t calls = 0;

    if (p->sharded)
        return p->n_partial > 0;
    for (int i = 0; i < p->n_buckets; i++) {
        const struct bucket *b = &p->buckets[i];
        int64_t n = 0;

        for (int k = b->first; k < b->first + b->n; k++)
            n += p->list[k].partial ? p->list[k].n : 0;
        calls += n > 0;
    }
    return calls;
}

/* ---- sums over replicas ---- */

static tp_status start_bucket(struct reduction *r, int bucket, struct tp_err *err)
{
    const struct params *p = r->params;
    const struct parallel *par = r->parallel;
    const struct bucket *b = &p->buckets[bucket];
    tp_status st;

    TP_TRY(reduce_within(r, b->first, b->first + b->n, err));
    if (p->n_owners > 1)
        return zero_send(p, par, &r->way, bucket, err);
    if (comm_size(par->replicas) > 1)
        st = comm_start_all_reduce(par->replicas, p->grad + b->from, b->to - b->from, COMM_F32,
                                   COMM_SUM, &r->jobs[bucket], err);
done:
    return st;
}

tp_status reduction_init(struct reduction *r, const struct params *p, const struct parallel *par,
                         struct arena *arena, struct tp_err *err)
{
    *r = (struct reduction){ .params = p, .parallel = par };
    r->jobs = arena_array(arena, (size_t)p->n_buckets + 1, sizeof *r->jobs);
    if (!r->jobs)
        return tp_fail(err, TP_E_NOMEM, "no memory for the list of parameters");
    return TP_OK;
}

void reduction_begin(struct reduction *r)
{
    r->n_left = r->params->n_buckets;
}

/* Whether a bucket has a tied head, whose sum is taken within the replica before. */
static bool waits_for_end(const struct params *p, const struct bucket *b)
{
    return !p->same_bits && p->tied >= b->first && p->tied < b->first + b->n;
}

tp_status reduction_ready(struct reduction *r, int unit, struct tp_err *err)
{
    const struct params *p = r->params;
    tp_status st = TP_OK;

    while (!p->sharded && r->n_left && !st) {
        const struct bucket *b = &p->buckets[r->n_left - 1];

        if (params_is_before(unit, b->unit) || waits_for_end(p, b))
            break;
        st = start_bucket(r, --r->n_left, err);
    }
    return st;
}

/* With zero3 gradients have gone to their owners over dp, microbatch by microbatch; the owner's
 * twins have seen other tokens. */
static tp_status end_sharded(const struct reduction *r, struct tp_err *err)
{
    const struct params *p = r->params;
    tp_status st = reduce_within(r, 0, p->n, err);

    if (!st && r->parallel->twins)
        st =
            comm_all_reduce(r->parallel->twins, p->owned_grad, p->n_owned, COMM_F32, COMM_SUM, err);
    return st;
}

/* Start what is left and wait for all sums over replicas. */
static tp_status end_replicas(struct reduction *r, struct tp_err *err)
{
    const struct params *p = r->params;
    tp_status st = TP_OK;

    while (r->n_left)
        TP_TRY(start_bucket(r, --r->n_left, err));
    if (p->n_owners > 1)
        return zero_land(p, r->parallel, &r->way, err);
    for (int i = p->n_buckets - 1; i >= 0; i--)
        TP_TRY(comm_finish(r->parallel->replicas, &r->jobs[i], err));
done:
    return st;
}

tp_status reduction_end(struct reduction *r, struct tp_err *err)
{
    const struct params *p = r->params;
    tp_status st = p->sharded ? end_sharded(r, err) : end_replicas(r, err);

    return st || !p->same_bits ? st : same_bits_reduce(p, r->parallel, err);
}
