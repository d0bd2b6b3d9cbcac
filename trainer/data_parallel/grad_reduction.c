/* trainer/data_parallel/grad_reduction.c - see trainer/data_parallel/grad_reduction.h. */
#include "trainer/data_parallel/grad_reduction.h"

/* ---- sums within a replica ---- */

/* Sum the entries of first .. end - 1 that are KV heads of several tp ranks. k and v of a layer are
 * neighbours, so they are summed in one call. */
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

/* Copy the partial gradients to p->partial, or back; returns the number of elements. */
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

/* One call sums all of them, because each is small. */
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
    const struct process_groups *groups = r->groups;

    if (p->same_bits) /* same_bits_reduce makes these sums, after those over replicas */
        return;
    if (groups->kv)
        reduce_shared(p, first, end, groups->kv);
    if (p->n_partial)
        reduce_partial(p, first, end, groups->tp);
    if (p->tied >= first && p->tied < end) {
        struct param_sums g = params_sums(p, &p->list[p->tied]);

        comm_all_reduce(groups->embedding_ends, p->k.queue, g.at, g.n, DTYPE_F32, COMM_SUM);
    }
}

/* ---- sums over replicas ---- */

/* The ranks over which a bucket's gradients are summed without ZeRO. */
static struct comm *replicas_of(const struct grad_reduction *r, const struct param_bucket *b)
{
    return b->is_expert ? r->groups->experts : r->groups->dp_cp;
}

static void start_bucket(struct grad_reduction *r, int bucket)
{
    const struct params *p = r->params;
    const struct param_bucket *b = &p->buckets[bucket];
    struct comm *replicas = replicas_of(r, b);

    reduce_within(r, b->first, b->first + b->n);
    if (params_sends(p, b)) {
        bucket_transfer_send(r->grads, bucket);
    } else if (comm_size(replicas) > 1) {
        device_record(p->k.queue, r->ready);
        device_wait(p->comm_queue, r->ready);
        comm_all_reduce(replicas, p->comm_queue, p->grad + b->from, b->to - b->from, DTYPE_F32,
                        COMM_SUM);
    }
}

tp_status grad_reduction_open(struct grad_reduction *r, struct bucket_transfer *grads,
                              struct tp_err *err)
{
    struct device *d = grads->params->comm_queue->device;
    tp_status st;

    *r =
        (struct grad_reduction){ .params = grads->params, .groups = grads->groups, .grads = grads };
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

/* Whether a bucket has a tied head: its sum over both ends of the pipeline comes first. */
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

/* Sum what cp ranks own of the buckets first .. end - 1. */
static void reduce_over_cp(const struct grad_reduction *r, int first, int end)
{
    const struct params *p = r->params;
    const struct param_bucket *last = &p->buckets[end - 1];
    const struct param_partition *from = &p->list[p->buckets[first].first].own,
                                 *to = &p->list[last->first + last->n - 1].own;

    comm_all_reduce(r->groups->cp_grads, p->k.queue, p->owned_grad + from->to,
                    to->to + to->n - from->to, DTYPE_F32, COMM_SUM);
}

/* Under zero3 each microbatch's gradients were sent to their owners. The cp ranks that own the same
 * rows have processed different tokens. With ep the owners of experts have all tokens. */
static void end_sharded(const struct grad_reduction *r)
{
    const struct params *p = r->params;

    reduce_within(r, 0, p->n);
    for (int first = 0, end; r->groups->cp_grads && first < p->n_buckets; first = end) {
        end = first + 1;
        if (p->buckets[first].is_expert)
            continue;
        while (end < p->n_buckets && !p->buckets[end].is_expert)
            end++;
        reduce_over_cp(r, first, end);
    }
}

/* Start the remaining buckets and wait for all sums over replicas. */
static void end_replicas(struct grad_reduction *r)
{
    const struct params *p = r->params;

    while (r->n_left)
        start_bucket(r, --r->n_left);
    if (p->n_owners > 1)
        bucket_transfer_finish(r->grads);
    if ((p->n_owners == 1 || r->groups->experts) && comm_size(r->groups->dp_cp) > 1) {
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
