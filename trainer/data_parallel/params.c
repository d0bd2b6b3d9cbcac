/* trainer/data_parallel/params.c - see trainer/data_parallel/params.h. */
#include "trainer/data_parallel/params.h"

#include <limits.h>
#include <string.h>

#include "trainer/process_groups.h"

enum {
    GAP_ELEMENTS = 16, /* tensors start on cache lines */
    ANY_UNIT = INT_MAX,
};

/* Whether tensor t goes straight behind the one before it: they are one matrix to the products. */
static bool joins_previous(const struct layout *l, int t)
{
    enum tensor_role before = t > 0 ? l->tensors[t - 1].role : ROLE_NONE;

    switch (l->tensors[t].role) {
    case ROLE_K:
        return before == ROLE_Q;
    case ROLE_V:
        return before == ROLE_K;
    case ROLE_UP:
        return before == ROLE_GATE;
    default:
        return false;
    }
}

/* Entries that a rank has of tensor t: one a part, none when it is another stage's. */
static int parts_of(const struct layout *l, int t, int rank)
{
    const struct tensor *tensor = &l->tensors[t];

    if (!layout_holds(l, t, rank))
        return 0;
    return tensor->placement.dim < 0 ? 1 : tensor->placement.blocks;
}

static int64_t round_up(int64_t n)
{
    return (n + GAP_ELEMENTS - 1) / GAP_ELEMENTS * GAP_ELEMENTS;
}

/* Where the next entry goes in the whole spans. */
struct cursor {
    int64_t at, vector_at;
};

static tp_status add_entry(struct params *p, const struct layout *l, const struct param *entry,
                           bool joins, struct cursor *c, struct tp_err *err)
{
    struct param *q = &p->list[p->n++];

    *q = *entry;
    if (!joins)
        c->at = round_up(c->at);
    q->at = c->at;
    if (__builtin_add_overflow(c->at, q->n, &c->at) || c->at > INT64_MAX - GAP_ELEMENTS)
        return tp_fail(err, TP_E_LAYOUT, "%s: too many parameters", l->tensors[q->tensor].name);
    p->n_elements = c->at > p->n_elements ? c->at : p->n_elements;
    if (q->type == p->dtype)
        return TP_OK;
    if (!joins) /* parts of a fused bias stay one row */
        c->vector_at = round_up(c->vector_at);
    q->vector_at = c->vector_at;
    c->vector_at += q->n;
    p->n_vectors = c->vector_at > p->n_vectors ? c->vector_at : p->n_vectors;
    return TP_OK;
}

/* What layers add, in fp32 always: norms, biases, learned positions. */
static bool is_added(enum tensor_role role)
{
    return tensor_role_is_bias(role) || role == ROLE_POSITIONS || role == ROLE_ATTENTION_NORM ||
           role == ROLE_MLP_NORM || role == ROLE_FINAL_NORM;
}

static bool has_head(const struct layout *l)
{
    for (int i = 0; i < l->n_tensors; i++)
        if (l->tensors[i].role == ROLE_HEAD)
            return true;
    return false;
}

/* Whether tensor t is an embedding that is the head too and pipelines put at both ends. The first
 * stage owns it, the last has a copy. */
static bool is_at_both_ends(const struct layout *l, int t)
{
    return l->tensors[t].role == ROLE_EMBEDDING && l->spec.pp > 1 && !has_head(l);
}

/* What tensor t of this rank is gathered with: its layer, or what is before or after the layers. On
 * the last stage the copy of the embedding is a head; a single stage has both in one. */
static int unit_of(const struct layout *l, int t, bool copy)
{
    int layer = l->tensors[t].layer;

    if (layer == LAYER_FIRST && copy)
        return LAYER_LAST;
    if (layer == LAYER_LAST && l->spec.pp == 1 && !has_head(l))
        return LAYER_FIRST;
    return layer;
}

/* The boxes of tensor t that tensor parallelism gives to (virtual) tp rank `shard`. */
static tp_status add(struct params *p, const struct layout *l, int t, int shard, int parts,
                     bool copy, struct cursor *c, struct tp_err *err)
{
    const struct tensor *tensor = &l->tensors[t];
    struct spec spec = l->spec;
    struct box boxes[TENSOR_BOXES_MAX];
    struct param q = { .tensor = t,
                       .shard = shard,
                       .unit = unit_of(l, t, copy),
                       .type = is_added(tensor->role) ? DTYPE_F32 : p->dtype,
                       .decay = tensor->ndim >= 2,
                       .summed = is_added(tensor->role) || tensor->role == ROLE_EMBEDDING,
                       .copy = copy,
                       .partial = l->spec.sp && l->spec.tp > 1 && tensor->placement.dim < 0 &&
                                  !p->same_bits,
                       .after = tensor->layer == LAYER_LAST,
                       .shared = tensor->placement.replicate };
    tp_status st;
    int n;

    spec.tp = p->n_virtual;
    n = layout_tp_boxes(tensor, &spec, shard, boxes);
    q.counted = parallel_first_holder(tensor, &spec, shard) == shard && !copy;
    for (q.part = 0; q.part < parts; q.part++) {
        q.box = (struct box){ .ndim = tensor->ndim };
        if (q.part < n)
            q.box = boxes[q.part];
        q.n = q.part < n ? box_elements(&q.box) : 0;
        if ((st = add_entry(p, l, &q, q.part > 0 || joins_previous(l, t), c, err)))
            return st;
    }
    return TP_OK;
}

/* Tensor t and those behind it that are one matrix with it to the products: how many. */
static int group_size(const struct layout *l, int t)
{
    int n = 1;

    while (t + n < l->n_tensors && joins_previous(l, t + n))
        n++;
    return n;
}

/* Tensors first .. first + n - 1, shard by shard. */
static tp_status add_group(struct params *p, const struct layout *l, int first, int n, int rank,
                           bool copy, struct cursor *c, struct tp_err *err)
{
    int shard = mesh_coord_of(&l->spec, rank).tp * p->n_shards;
    int end = shard + (l->tensors[first].placement.dim < 0 ? 1 : p->n_shards);
    tp_status st = TP_OK;

    for (; shard < end && !st; shard++)
        for (int t = first; t < first + n && !st; t++)
            st = add(p, l, t, shard, copy ? 1 : parts_of(l, t, rank), copy, c, err);
    return st;
}

/* Add the tensors of the unit, ANY_UNIT: of all. With zero3 each unit begins the spans anew. */
static tp_status add_unit(struct params *p, const struct layout *l, int rank, int unit,
                          struct tp_err *err)
{
    struct cursor c = { 0 };
    tp_status st;

    for (int t = 0, n; t < l->n_tensors; t += n) {
        bool ends = is_at_both_ends(l, t);
        bool copy = ends && mesh_coord_of(&l->spec, rank).pp == l->spec.pp - 1;

        n = group_size(l, t);
        if (strcmp(l->tensors[t].group, GROUP_PARAM) != 0)
            continue;
        if (unit != ANY_UNIT && unit_of(l, t, copy) != unit)
            continue;
        if (ends && (copy || layout_holds(l, t, rank)))
            p->tied = p->n;
        if ((st = add_group(p, l, t, n, rank, copy, &c, err)))
            return st;
    }
    return TP_OK;
}

/* Give every entry its rows and its number of the gradient norm, the same at every layout. */
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

/* Room for the gradients of a tied head beside those of its embedding, on a stage that has both. */
static void add_head(struct params *p, const struct layout *l)
{
    int first = params_find(p, l, ROLE_EMBEDDING, LAYER_FIRST);
    const struct param *a = &p->list[first], *b = a + p->n_shards - 1;

    if (l->spec.pp > 1 || has_head(l))
        return;
    p->table = first;
    if (p->sharded)
        p->head = (struct range){ p->n_owned, b->own.to + b->own.n - a->own.to };
    else
        p->head = (struct range){ p->n_elements, b->at + b->n - a->at };
}

tp_status params_init(struct params *p, const struct layout *l, int rank, enum dtype dtype,
                      int same_bits, struct arena *arena, struct tp_err *err)
{
    tp_status st;
    size_t most = 0;

    *p = (struct params){ .dtype = dtype,
                          .sharded = l->spec.zero == 3 && l->spec.dp > 1,
                          .tied = -1,
                          .same_bits = same_bits > 0,
                          .n_virtual = same_bits ? same_bits : l->spec.tp };
    p->n_shards = p->n_virtual / l->spec.tp;
    for (int t = 0; t < l->n_tensors; t++)
        most += (size_t)l->tensors[t].placement.blocks * (size_t)p->n_shards;
    p->list = arena_array(arena, most, sizeof *p->list);
    if (!p->list)
        return tp_fail(err, TP_E_NOMEM, "no memory for the list of parameters");
    if (!p->sharded)
        TP_TRY(add_unit(p, l, rank, ANY_UNIT, err));
    for (int unit = LAYER_LAST; p->sharded && unit < l->n_layers; unit++)
        TP_TRY(add_unit(p, l, rank, unit, err));
    p->n_elements = round_up(p->n_elements);
    TP_TRY(params_deal(p, l, mesh_coord_of(&l->spec, rank), arena, err));
    TP_TRY(number_places(p, l, arena, err));
    if (same_bits)
        add_head(p, l);
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

int params_twin(const struct params *p, int i)
{
    const struct param *q = &p->list[i];
    int k = 0;

    while (k < i && (p->list[k].tensor != q->tensor || !box_equal(&p->list[k].box, &q->box)))
        k++;
    return k;
}

int64_t params_stride(const struct params *p, int i)
{
    const struct param *q = &p->list[i];

    for (int k = i + 1; k < p->n; k++)
        if (p->list[k].tensor == q->tensor && p->list[k].shard == q->shard + 1)
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
