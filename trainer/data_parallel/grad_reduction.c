/* trainer/data_parallel/grad_reduction.c - see trainer/data_parallel/grad_reduction.h. */
#include "trainer/data_parallel/grad_reduction.h"

/* ---- sums within a replica ---- */

/* Entries first .. end - 1 of heads that several tp ranks have. k and v of a layer, which are side
 * by side, are summed in one call. */
static void reduce_shared(const struct params *p, int first, int end, struct comm *kv)
{
    for (int i = first; i < end; i++) {
        struct param_sums g = params_sums(p, &p->list[i]);

        if (!p->list[i].shared)
            continue;
        while (i + 1 < end && p->list[i + 1].shared &&
               params_sums(p, &p->list[i + 1]).at == g.at + g.n)
            g.n += params_sums(p, &p->list[++i]).n;
        comm_all_reduce(kv, p->k.queue, g.at, g.n, DTYPE_F32, COMM_SUM);
    }
}

/* Copy the gradients that are partial to p->partial, or back; returns how many elements. */
static int64_t move_partial(const struct params *p, int first, int end, bool back)
{
    float *at = p->partial;

    for (int i = first; i < end; i++) {
        const struct param_sums g = params_sums(p, &p->list[i]);

        if (!p->list[i].partial || !g.n)
            continue;
        device_copy(p->k.queue, back ? g.at : at, back ? at : g.at, g.n * (int64_t)sizeof *at);
        at += g.n;
    }
    return at - p->partial;
}

/* All in one call, because each is small. */
static void reduce_partial(const struct params *p, int first, int end, struct comm *tp)
{
    int64_t n = move_partial(p, first, end, false);

    if (!n)
        return;
    comm_all_reduce(tp, p->k.queue, p->partial, n, DTYPE_F32, COMM_SUM);
    move_partial(p, first, end, true);
}

static void reduce_within(const struct grad_reduction *r, int first, int end)
{
    const struct params *p = r->params;
    const struct process_groups *par = r->parallel;

    if (p->same_bits) /* same_bits_reduce does it, after the sum over replicas */
        return;
    if (par->kv)
        reduce_shared(p, first, end, par->kv);
    if (p->n_partial)
        reduce_partial(p, first, end, par->tp);
    if (p->tied >= first && p->tied < end) {
        struct param_sums g = params_sums(p, &p->list[p->tied]);

        comm_all_reduce(par->embedding_ends, p->k.queue, g.at, g.n, DTYPE_F32, COMM_SUM);
    }
}

int64_t grad_reduction_partial_calls(const struct params *p)
{
    int64_t calls = 0;

    if (p->sharded)
        return p->n_partial > 0;
    for (int i = 0; i < p->n_buckets; i++) {
        const struct param_bucket *b = &p->buckets[i];
        int64_t n = 0;

        for (int k = b->first; k < b->first + b->n; k++)
            n += p->list[k].partial ? p->list[k].n : 0;
        calls += n > 0;
    }
    return calls;
}

/* ---- sums over replicas ---- */

static void start_bucket(struct grad_reduction *r, int bucket)
{
    const struct params *p = r->params;
    const struct process_groups *par = r->parallel;
    const struct param_bucket *b = &p->buckets[bucket];

    reduce_within(r, b->first, b->first + b->n);
    if (p->n_owners > 1) {
        bucket_transfer_send(r->grads, bucket);
    } else if (comm_size(par->dp_cp) > 1) {
        device_record(p->k.queue, r->ready);
        device_wait(p->comm_queue, r->ready);
        comm_all_reduce(par->dp_cp, p->comm_queue, p->grad + b->from, b->to - b->from, DTYPE_F32,
                        COMM_SUM);
    }
}

tp_status grad_reduction_open(struct grad_reduction *r, struct bucket_transfer *grads,
                              struct tp_err *err)
{
    struct device *d = grads->params->comm_queue->device;
    tp_status st;

    *r = (struct grad_reduction){ .params = grads->params,
                                  .parallel = grads->groups,
                                  .grads = grads };
    TP_TRY(device_event_open(d, &r->ready, err));
    TP_TRY(device_event_open(d, &r->done, err));
done:
    return st;
}

void grad_reduction_close(struct grad_reduction *r)
{
    device_event_close(r->ready);
    device_event_close(r->done);
}

void grad_reduction_begin(struct grad_reduction *r)
{
    r->n_left = r->params->n_buckets;
}

/* Whether a bucket has a tied head, whose sum is taken within the replica before. */
static bool waits_for_end(const struct params *p, const struct param_bucket *b)
{
    return !p->same_bits && p->tied >= b->first && p->tied < b->first + b->n;
}

void grad_reduction_ready(struct grad_reduction *r, int unit)
{
    const struct params *p = r->params;

    while (!p->sharded && r->n_left) {
        const struct param_bucket *b = &p->buckets[r->n_left - 1];

        if (params_is_before(unit, b->unit) || waits_for_end(p, b))
            break;
        start_bucket(r, --r->n_left);
    }
}

/* Under zero3 each microbatch's gradients were sent to their owners. The cp ranks that own the same
 * rows have seen other tokens. */
static void end_sharded(const struct grad_reduction *r)
{
    const struct params *p = r->params;

    reduce_within(r, 0, p->n);
    if (r->parallel->cp_grads)
        comm_all_reduce(r->parallel->cp_grads, p->k.queue, p->owned_grad, p->n_owned, DTYPE_F32,
                        COMM_SUM);
}

/* Start what is left and wait for all sums over replicas. */
static void end_replicas(struct grad_reduction *r)
{
    const struct params *p = r->params;

    while (r->n_left)
        start_bucket(r, --r->n_left);
    if (p->n_owners > 1) {
        bucket_transfer_finish(r->grads);
    } else if (comm_size(r->parallel->dp_cp) > 1) {
        device_record(p->comm_queue, r->done);
        device_wait(p->k.queue, r->done);
    }
}

void grad_reduction_end(struct grad_reduction *r)
{
    const struct params *p = r->params;

    if (p->sharded)
        end_sharded(r);
    else
        end_replicas(r);
}
