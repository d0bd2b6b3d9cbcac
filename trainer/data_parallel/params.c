/* trainer/data_parallel/params.c - see trainer/data_parallel/params.h. */
#include "trainer/data_parallel/params.h"

#include <limits.h>
#include <string.h>

enum { ANY_UNIT = INT_MAX };

/* The ends of the whole spans. */
struct cursor {
    int64_t at, vector_at;
};

/* Set an entry's places in the whole spans. */
static tp_status place_entry(struct params *p, struct param *q, struct cursor *c, const char *name,
                             struct tp_err *err)
{
    if (c->at > INT64_MAX / 2 - q->n)
        return tp_fail(err, TP_E_LAYOUT, "%s: too many parameters", name);
    q->at = param_place(&c->at, q->n, q->joins);
    p->n_elements = c->at > p->n_elements ? c->at : p->n_elements;
    if (q->type == p->dtype)
        return TP_OK;
    q->vector_at = param_place(&c->vector_at, q->n, q->joins);
    p->n_vectors = c->vector_at > p->n_vectors ? c->vector_at : p->n_vectors;
    return TP_OK;
}

/* Add a group of n tensors, shard by shard. */
static tp_status add_group(struct params *p, const struct layout *l, int first, int n, bool copy,
                           struct cursor *c, struct tp_err *err)
{
    int n_shards, shard = param_shards_of(&p->rank, &l->tensors[first], &n_shards);
    tp_status st = TP_OK;

    for (int end = shard + n_shards; shard < end; shard++) {
        struct param *entries = p->list + p->n;
        int listed = param_list_shard(entries, &p->rank, l->tensors, first, n, shard, copy);

        for (int i = 0; i < listed && !st; i++)
            st = place_entry(p, &entries[i], c, l->tensors[entries[i].tensor].name, err);
        p->n += listed;
    }
    return st;
}

/* Add the tensors of the unit (ANY_UNIT: of all). With zero3 each unit starts at the beginning of
 * the spans. */
static tp_status add_unit(struct params *p, const struct layout *l, int rank, int unit,
                          struct tp_err *err)
{
    struct cursor c = { 0 };
    tp_status st;

    for (int t = 0, n; t < l->n_tensors; t += n) {
        bool ends = param_is_at_both_ends(&p->rank, &l->tensors[t]);
        bool copy = ends && mesh_coord_of(&l->spec, rank).pp == l->spec.pp - 1;

        n = param_group_size(l->tensors, l->n_tensors, t);
        if (strcmp(l->tensors[t].group, GROUP_PARAM) != 0 || !(copy || layout_holds(l, t, rank)))
            continue;
        if (unit != ANY_UNIT && param_unit_of(&p->rank, &l->tensors[t], copy) != unit)
            continue;
        if (ends)
            p->tied = p->n;
        if ((st = add_group(p, l, t, n, copy, &c, err)))
            return st;
    }
    return TP_OK;
}

/* Link the entries of each tensor: a model with many experts has 20,000 tensors. */
static tp_status link_entries(struct params *p, const struct layout *l, struct arena *arena,
                              struct tp_err *err)
{
    p->first_of = arena_array(arena, (size_t)l->n_tensors, sizeof *p->first_of);
    if (!p->first_of)
        return tp_fail(err, TP_E_NOMEM, "no memory for a list of %d tensors", l->n_tensors);
    for (int t = 0; t < l->n_tensors; t++)
        p->first_of[t] = -1;
    for (int i = p->n - 1; i >= 0; i--) {
        p->list[i].next = p->first_of[p->list[i].tensor];
        p->first_of[p->list[i].tensor] = i;
    }
    return TP_OK;
}

/* With ep the norm is a sum over all ranks, and the first replica of an entry counts it. With ZeRO
 * each dp rank has rows of its own, with zero3 each rank those of its experts. */
static void count_first_replicas(struct params *p, const struct spec *s, struct mesh_coord at)
{
    int lane = at.dp * s->cp + at.cp, replica = s->zero ? at.cp : lane;
    bool counts_experts = p->sharded || lane < s->ep;

    for (int i = 0; i < p->n && s->ep > 1; i++)
        p->list[i].counted &= p->list[i].is_expert ? counts_experts : replica == 0;
}

/* Set every entry's rows and its place in the gradient norm. Places are the same at every
 * layout. */
static tp_status number_places(struct params *p, const struct layout *l, struct arena *arena,
                               struct tp_err *err)
{
    int *first = arena_array(arena, (size_t)l->n_tensors, sizeof *first); /* of each tensor */

    if (!first)
        return tp_fail(err, TP_E_NOMEM, "no memory for a list of %d tensors", l->n_tensors);
    for (int t = 0; t < l->n_tensors; t++) {
        const struct placement *r = &l->tensors[t].placement;

        if (strcmp(l->tensors[t].group, GROUP_PARAM) != 0)
            continue;
        first[t] = p->n_places;
        p->n_places += r->dim < 0 ? 1 : p->n_virtual * r->blocks;
    }
    for (int i = 0; i < p->n; i++) {
        struct param *q = &p->list[i];
        const struct placement *r = &l->tensors[q->tensor].placement;

        q->place = first[q->tensor] + q->part + (r->dim < 0 ? 0 : q->shard * r->blocks);
        q->row = p->n_rows;
        if (q->counted && q->n)
            p->n_rows += q->box.len[0];
    }
    return TP_OK;
}

/* Reserve memory for the gradients of a tied head, apart from those of its embedding, on a stage
 * that has both. */
static void add_head(struct params *p, const struct layout *l)
{
    int first = params_find(p, l, ROLE_EMBEDDING, LAYER_FIRST);
    const struct param *a = &p->list[first], *b = a + p->n_shards - 1;

    if (l->spec.pp > 1 || !p->rank.ties)
        return;
    p->table = first;
    if (p->sharded)
        p->head = (struct pairwise_range){ p->n_owned, b->own.to + b->own.n - a->own.to };
    else
        p->head = (struct pairwise_range){ p->n_elements, b->at + b->n - a->at };
}

/* Floats of a pack that can hold the gradients of any bucket that is sent, of experts or of other
 * entries, its weights, or both in turn. */
static int64_t pack_floats(const struct params *p, bool of_experts, bool grads, bool weights)
{
    int64_t largest = 0;

    for (int i = 0; i < p->n_buckets; i++) {
        const struct param_bucket *b = &p->buckets[i];

        if (b->is_expert != of_experts || !params_sends(p, b))
            continue;
        if (grads && b->owner_grads > largest)
            largest = b->owner_grads;
        if (weights && b->owner_weights > largest)
            largest = b->owner_weights;
    }
    return param_owners(&p->rank, of_experts) * largest;
}

/* trainer/sizing/param_count.h counts a rank's memory from a single layer. This checks the
 * count. */
static tp_status check_counted(const struct params *p, const struct param_sizes *z,
                               struct tp_err *err)
{
    const struct {
        const char *what;
        int64_t listed, counted;
    } all[] = {
        { "entries", p->n, z->n_entries },
        { "elements", p->n_elements, z->n_elements },
        { "elements of vectors", p->n_vectors, z->n_vectors },
        { "partial gradients", p->n_partial, z->n_partial },
        { "owned elements", p->n_owned, z->n_owned },
        { "owned elements and head gradients", p->n_owned + p->head.n, z->n_owned + z->n_head },
        { "numbers of the norm", p->n_places, z->n_places },
        { "rows of the norm", p->n_rows, z->n_rows },
        { "packs", p->n_packs, z->n_packs },
        { "floats of a pack", pack_floats(p, false, !p->sharded, true), z->pack_floats },
        { "floats of a gradient pack", pack_floats(p, false, p->sharded, false),
          z->grad_pack_floats },
        { "floats of a pack of experts", pack_floats(p, true, false, true), z->expert_pack_floats },
        { "floats of a gradient pack of experts", pack_floats(p, true, true, false),
          z->expert_grad_pack_floats },
    };

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].listed > all[i].counted)
            return tp_fail(err, TP_E_INTERNAL, "this rank has %lld %s, but %lld were counted",
                           (long long)all[i].listed, all[i].what, (long long)all[i].counted);
    return TP_OK;
}

tp_status params_init(struct params *p, const struct layout *l, int rank,
                      const struct param_sizes *counted, struct arena *arena, struct tp_err *err)
{
    const struct param_rank *r = &counted->rank;
    struct mesh_coord at = mesh_coord_of(&l->spec, rank);
    size_t most = PARAM_SHARD_MAX;
    tp_status st;

    *p = (struct params){ .rank = *r,
                          .dtype = r->dtype,
                          .sharded = counted->is_sharded,
                          .tied = -1,
                          .same_bits = r->same_bits,
                          .n_virtual = r->n_virtual,
                          .n_shards = r->n_shards,
                          .n_owners = r->n_owners };
    p->rank.tp = at.tp;
    for (int t = 0; t < l->n_tensors; t++)
        most += (size_t)l->tensors[t].placement.blocks * (size_t)p->n_shards;
    p->list = arena_array(arena, most, sizeof *p->list);
    if (!p->list)
        return tp_fail(err, TP_E_NOMEM, "no memory for the list of parameters");
    if (!p->sharded)
        TP_TRY(add_unit(p, l, rank, ANY_UNIT, err));
    for (int unit = LAYER_LAST; p->sharded && unit < l->n_layers; unit++)
        TP_TRY(add_unit(p, l, rank, unit, err));
    param_place(&p->n_elements, 0, false);
    TP_TRY(link_entries(p, l, arena, err));
    count_first_replicas(p, &l->spec, at);
    TP_TRY(params_partition(p, l, at, counted->is_one_bucket, arena, err));
    TP_TRY(number_places(p, l, arena, err));
    if (p->same_bits)
        add_head(p, l);
    TP_TRY(check_counted(p, counted, err));
done:
    return st;
}

int params_find(const struct params *p, const struct layout *l, enum tensor_role role, int layer)
{
    for (int i = 0; i < p->n; i++) {
        const struct tensor *t = &l->tensors[p->list[i].tensor];

        if (t->role == role && t->layer == layer)
            return i;
    }
    return -1;
}

int params_first_holder(const struct params *p, int i)
{
    int k = p->first_of[p->list[i].tensor];

    while (!box_equal(&p->list[k].box, &p->list[i].box))
        k = p->list[k].next;
    return k;
}

int64_t params_stride(const struct params *p, int i)
{
    const struct param *q = &p->list[i];

    for (int k = q->next; k >= 0; k = p->list[k].next)
        if (p->list[k].shard == q->shard + 1)
            return p->list[k].at - q->at;
    return 0;
}

int params_unit(const struct params *p, int unit)
{
    for (int i = 0; p->sharded && i < p->n_buckets; i++)
        if (p->buckets[i].unit == unit)
            return i;
    return -1;
}

int params_unit_end(const struct params *p, int first)
{
    int end = first + 1;

    while (end < p->n_buckets && p->buckets[end].unit == p->buckets[first].unit)
        end++;
    return end;
}
