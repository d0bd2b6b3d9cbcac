/* trainer/data_parallel/bucket_transfer.c - see trainer/data_parallel/bucket_transfer.h. */
#include "trainer/data_parallel/bucket_transfer.h"

static const struct param_partition *piece_of(const struct params *p, int owner, int i)
{
    return &p->partitions[owner * p->n + i];
}

/* ---- packing ---- */

/* Copy all gradients of a bucket to data[b->n_owners][b->owner_grads]. */
static void pack_grads(const struct params *p, const struct param_bucket *b, float *data)
{
    for (int owner = 0; owner < b->n_owners; owner++)
        for (int i = b->first; i < b->first + b->n; i++) {
            const struct param_partition *x = piece_of(p, owner, i);

            device_copy(p->k.queue, data + owner * b->owner_grads + x->packed, p->grad + x->from,
                        x->n * 4);
        }
}

/* Copy the weights of a bucket that owner `me` has to its part of
 * data[b->n_owners][b->owner_weights]. */
static void pack_weights(const struct params *p, const struct param_bucket *b, int me, float *data)
{
    char *part = (char *)(data + me * b->owner_weights);

    for (int i = b->first; i < b->first + b->n; i++) {
        const struct param *q = &p->list[i];
        const struct param_owned o = params_owned(p, q);
        const void *weights = q->type == DTYPE_BF16 ? (const void *)o.value_bf16 : o.value;

        device_copy(p->k.queue, part + q->own.packed_bytes, weights, o.n * dtype_bytes(q->type));
    }
}

/* Copy one owner's rows of an entry to where layers read them. Under zero1 in bf16 a rank also
 * keeps the rounded value of the weights that layers read in fp32: a checkpoint has it. */
static void unpack_rows(const struct params *p, const struct param *q,
                        const struct param_partition *x, const void *packed)
{
    int64_t e = dtype_bytes(q->type), n_bytes = x->n * e;
    char *entry = (char *)(uintptr_t)params_weight(p, q);

    device_copy(p->k.queue, entry + (x->from - q->at) * e, packed, n_bytes);
    if (q->type != p->dtype && !p->sharded)
        p->k.ops->cast(p->k.queue, &(struct cast){ p->value_bf16 + x->from, DTYPE_BF16, packed,
                                                   DTYPE_F32, x->n });
}

static void unpack_weights(const struct params *p, const struct param_bucket *b, const float *data)
{
    for (int owner = 0; owner < b->n_owners; owner++) {
        const char *part = (const char *)(data + owner * b->owner_weights);

        for (int i = b->first; i < b->first + b->n; i++) {
            const struct param_partition *x = piece_of(p, owner, i);

            unpack_rows(p, &p->list[i], x, part + x->packed_bytes);
        }
    }
}

/* ---- the transfer ---- */

static float *data_of(const struct params *p, enum bucket_payload payload, int buffer)
{
    if (!p->sharded)
        return p->pack + buffer * p->pack_each;
    if (payload == BUCKET_GRADS)
        return buffer ? p->expert_grad_pack : p->grad_pack;
    return buffer ? p->expert_pack : p->pack;
}

static struct bucket_buffer *buffer_of(struct bucket_transfer *t, int bucket)
{
    const struct params *p = t->params;

    return &t->buffers[p->sharded ? p->buckets[bucket].is_expert : bucket % t->n_buffers];
}

/* The ranks among which a bucket is partitioned. */
static struct comm *owners_of(const struct bucket_transfer *t, const struct param_bucket *b)
{
    return b->is_expert ? t->groups->experts : t->groups->dp;
}

tp_status bucket_transfer_open(struct bucket_transfer *t, const struct params *p,
                               const struct process_groups *groups, enum bucket_payload payload,
                               struct tp_err *err)
{
    struct device *d = p->k.queue->device;
    tp_status st = TP_OK;

    *t = (struct bucket_transfer){ .payload = payload, .params = p, .groups = groups };
    if (p->n_owners == 1)
        return TP_OK;
    t->n_buffers = p->sharded ? 1 + (t->groups->experts != NULL) : p->n_packs;
    for (int i = 0; i < t->n_buffers; i++) {
        t->buffers[i].data = data_of(p, payload, i);
        TP_TRY(device_event_open(d, &t->buffers[i].packed, err));
        TP_TRY(device_event_open(d, &t->buffers[i].sent, err));
    }
done:
    return st;
}

void bucket_transfer_close(struct bucket_transfer *t)
{
    for (int i = 0; i < t->n_buffers; i++) {
        device_event_close(t->buffers[i].packed);
        device_event_close(t->buffers[i].sent);
    }
}

/* Where the gradients that this rank owns arrive. */
static float *arrival_of(const struct bucket_transfer *t, const struct param_bucket *b, float *data)
{
    const struct params *p = t->params;

    return p->sharded ? data + comm_rank(owners_of(t, b)) * b->owner_grads : p->grad + b->from;
}

/* Queue the collective of a packed bucket. */
static void queue_collective(const struct bucket_transfer *t, const struct param_bucket *b,
                             float *data)
{
    const struct params *p = t->params;
    struct comm *owners = owners_of(t, b), *cp = t->groups->cp_grads;
    float *arrival;

    if (t->payload == BUCKET_WEIGHTS) {
        comm_all_gather(owners, p->comm_queue, data, data + comm_rank(owners) * b->owner_weights,
                        b->owner_weights * (int64_t)sizeof *data, DTYPE_U8);
        return;
    }
    arrival = arrival_of(t, b, data);
    comm_reduce_scatter(owners, p->comm_queue, arrival, data, b->owner_grads, DTYPE_F32);
    if (cp && !p->sharded)
        comm_all_reduce(cp, p->comm_queue, arrival, b->owner_grads, DTYPE_F32, COMM_SUM);
}

static const float *receive(struct bucket_transfer *t, struct bucket_buffer *x)
{
    const struct param_bucket *b = x->bucket;

    if (!b)
        return NULL;
    x->bucket = NULL;
    device_wait(t->params->k.queue, x->sent);
    if (t->payload == BUCKET_GRADS)
        return arrival_of(t, b, x->data);
    unpack_weights(t->params, b, x->data);
    return NULL;
}

void bucket_transfer_send(struct bucket_transfer *t, int bucket)
{
    const struct params *p = t->params;
    const struct param_bucket *b = &p->buckets[bucket];
    struct bucket_buffer *x = buffer_of(t, bucket);

    receive(t, x);
    if (t->payload == BUCKET_WEIGHTS)
        pack_weights(p, b, comm_rank(owners_of(t, b)), x->data);
    else
        pack_grads(p, b, x->data);
    device_record(p->k.queue, x->packed);
    device_wait(p->comm_queue, x->packed);
    queue_collective(t, b, x->data);
    device_record(p->comm_queue, x->sent);
    x->bucket = b;
}

const float *bucket_transfer_receive(struct bucket_transfer *t, int bucket)
{
    struct bucket_buffer *x = buffer_of(t, bucket);

    return x->bucket == &t->params->buckets[bucket] ? receive(t, x) : NULL;
}

void bucket_transfer_finish(struct bucket_transfer *t)
{
    for (int i = 0; i < t->n_buffers; i++)
        receive(t, &t->buffers[i]);
}

void bucket_transfer_start_weights(struct bucket_transfer *t)
{
    const struct params *p = t->params;

    params_round(p);
    if (p->n_owners == 1 || p->sharded)
        return;
    for (int i = 0; i < p->n_buckets; i++)
        if (params_sends(p, &p->buckets[i]))
            bucket_transfer_send(t, i);
    bucket_transfer_finish(t);
}
