/* trainer/data_parallel/params_partition.c - which dp rank updates which rows, and which
 * neighbouring entries are sent in one bucket; see trainer/data_parallel/params.h and
 * trainer/data_parallel/bucket_transfer.h. */
#include "trainer/data_parallel/params.h"

/* Give owner number `owner` its part of every entry that has so many. */
static void partition_to(struct params *p, const struct layout *l, int owner)
{
    int64_t end = 0;

    for (int i = 0; i < p->n; i++) {
        const struct param *q = &p->list[i];
        struct param_partition *x = &p->partitions[owner * p->n + i];

        if (owner >= param_owners(&p->rank, q->is_expert))
            continue;
        *x = param_piece(&p->rank, &l->tensors[q->tensor], q, owner);
        x->to = param_place(&end, x->n, q->joins);
    }
    p->n_owned = end > p->n_owned ? end : p->n_owned;
}

/* Set what this rank owns. Of experts and of other entries it may be another owner, so the places
 * in owned spans are its own. */
static void set_owned(struct params *p, const struct spec *s, struct mesh_coord at)
{
    int64_t end = 0;

    for (int i = 0; i < p->n; i++) {
        struct param *q = &p->list[i];
        int owner = q->is_expert ? (at.dp * s->cp + at.cp) / s->ep : at.dp;

        if (param_owners(&p->rank, q->is_expert) == 1)
            owner = 0;
        q->own = p->partitions[owner * p->n + i];
        q->own.to = param_place(&end, q->own.n, q->joins);
        if (q->partial)
            p->n_partial += p->sharded ? q->own.n : q->n;
    }
    p->n_owned = end > p->n_owned ? end : p->n_owned;
}

/* Set the places of a bucket's entries in every owner's part of a pack. */
static void lay_out_packs(struct params *p, struct param_bucket *b)
{
    for (int owner = 0; owner < b->n_owners; owner++) {
        int64_t at = 0, bytes = 0;

        for (int i = b->first; i < b->first + b->n; i++) {
            const struct param *q = &p->list[i];
            struct param_partition *x = &p->partitions[owner * p->n + i];

            x->packed = at;
            x->grad = b->n_owners > 1 ? b->from + at : x->from;
            x->packed_bytes = param_pack(&bytes, x->n * dtype_bytes(q->type), q->begins_group);
            at += x->n;
        }
        bytes = (bytes + 3) / 4;
        b->owner_grads = at > b->owner_grads ? at : b->owner_grads;
        b->owner_weights = bytes > b->owner_weights ? bytes : b->owner_weights;
    }
}

/* Whether entry i belongs to bucket b too, which ends at entry i so far. */
static bool takes(const struct params *p, const struct param_bucket *b,
                  const struct param_bucket_fill *fill, int i)
{
    if (i == p->n)
        return false;
    if (b->n == 0)
        return true;
    if (p->sharded)
        return p->list[i].unit == b->unit && p->list[i].is_expert == b->is_expert;
    return param_bucket_takes(fill, p->list[i - 1].layer, &p->list[i]);
}

static void fill_buckets(struct params *p, bool is_one)
{
    for (int i = 0; i < p->n;) {
        struct param_bucket *b = &p->buckets[p->n_buckets++];
        int layer = p->list[i].layer;
        struct param_bucket_fill fill = { .is_expert = p->list[i].is_expert,
                                          .is_whole_list = is_one,
                                          .layer = layer,
                                          .begins_layer = i == 0 || p->list[i - 1].layer != layer };

        *b = (struct param_bucket){ .first = i,
                                    .from = p->list[i].at,
                                    .unit = p->list[i].unit,
                                    .is_expert = p->list[i].is_expert,
                                    .n_owners = param_owners(&p->rank, p->list[i].is_expert) };
        while (takes(p, b, &fill, i)) {
            if (params_is_before(b->unit, p->list[i].unit))
                b->unit = p->list[i].unit;
            fill.n += p->list[i++].n;
            b->n++;
        }
        b->to = i < p->n ? p->list[i].at : p->n_elements;
        lay_out_packs(p, b);
    }
}

tp_status params_partition(struct params *p, const struct layout *l, struct mesh_coord at,
                           bool is_one_bucket, struct arena *arena, struct tp_err *err)
{
    int owners = p->rank.n_expert_owners;

    owners = p->rank.n_owners > owners ? p->rank.n_owners : owners;
    p->partitions = arena_array(arena, (size_t)owners * (size_t)p->n + 1, sizeof *p->partitions);
    p->buckets = arena_array(arena, (size_t)p->n + 1, sizeof *p->buckets);
    if (!p->partitions || !p->buckets)
        return tp_fail(err, TP_E_NOMEM, "no memory for the list of parameters");
    for (int owner = 0; owner < owners; owner++)
        partition_to(p, l, owner);
    fill_buckets(p, is_one_bucket);
    set_owned(p, &l->spec, at);
    p->n_packs = p->sharded || p->n_buckets == 1 ? 1 : PARAM_PACKS_MAX;
    return TP_OK;
}
