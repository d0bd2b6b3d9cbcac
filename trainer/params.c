/* trainer/params.c - see trainer/params.h. */
#include "trainer/params.h"

#include <limits.h>
#include <string.h>

#include "trainer/parallel.h"

enum {
    GAP_ELEMENTS = 16, /* tensors start on cache lines */
    ANY_UNIT = INT_MAX,
};

/* Whether tensor t goes straight behind the one before it: they are one matrix to the products. */
static bool joins_previous(const struct layout *l, int t)
{
    enum role before = t > 0 ? l->tensors[t - 1].role : ROLE_NONE;

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
    return tensor->rule.dim < 0 ? 1 : tensor->rule.blocks;
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
static bool is_added(enum role role)
{
    return role_is_bias(role) || role == ROLE_POSITIONS || role == ROLE_ATTENTION_NORM ||
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

/* The boxes of tensor t that tensor parallelism gives this rank. */
static tp_status add(struct params *p, const struct layout *l, int t, int rank, int parts,
                     bool copy, struct cursor *c, struct tp_err *err)
{
    const struct tensor *tensor = &l->tensors[t];
    struct mesh_coord at = mesh_coord_of(&l->spec, rank);
    struct box boxes[TENSOR_BOXES_MAX];
    int n = layout_tp_boxes(tensor, &l->spec, at.tp, boxes);
    bool first = parallel_first_holder(tensor, &l->spec, at.tp) == at.tp;
    struct param q = { .tensor = t,
                       .unit = unit_of(l, t, copy),
                       .type = is_added(tensor->role) ? DTYPE_F32 : p->dtype,
                       .decay = tensor->ndim >= 2,
                       .summed = is_added(tensor->role) || tensor->role == ROLE_EMBEDDING,
                       .copy = copy,
                       .partial = l->spec.sp && l->spec.tp > 1 && tensor->rule.dim < 0,
                       .shared = tensor->rule.share,
                       .counted = first && !copy };
    tp_status st;

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

/* Add the tensors of the unit, ANY_UNIT: of all. With zero3 each unit begins the spans anew. */
static tp_status add_unit(struct params *p, const struct layout *l, int rank, int unit,
                          struct tp_err *err)
{
    struct cursor c = { 0 };
    tp_status st;

    for (int t = 0; t < l->n_tensors; t++) {
        bool ends = is_at_both_ends(l, t);
        bool copy = ends && mesh_coord_of(&l->spec, rank).pp == l->spec.pp - 1;
        int parts = copy ? 1 : parts_of(l, t, rank);

        if (strcmp(l->tensors[t].group, GROUP_PARAM) != 0)
            continue;
        if (unit != ANY_UNIT && unit_of(l, t, copy) != unit)
            continue;
        if (ends && parts)
            p->tied = p->n;
        if ((st = add(p, l, t, rank, parts, copy, &c, err)))
            return st;
    }
    return TP_OK;
}

tp_status params_init(struct params *p, const struct layout *l, int rank, enum dtype dtype,
                      struct arena *arena, struct tp_err *err)
{
    tp_status st;
    size_t most = 0;

    *p = (struct params){ .dtype = dtype,
                          .sharded = l->spec.zero == 3 && l->spec.dp > 1,
                          .tied = -1 };
    for (int t = 0; t < l->n_tensors; t++)
        most += (size_t)l->tensors[t].rule.blocks;
    p->list = arena_array(arena, most, sizeof *p->list);
    if (!p->list)
        return tp_fail(err, TP_E_NOMEM, "no memory for the list of parameters");
    if (!p->sharded)
        TP_TRY(add_unit(p, l, rank, ANY_UNIT, err));
    for (int unit = LAYER_LAST; p->sharded && unit < l->n_layers; unit++)
        TP_TRY(add_unit(p, l, rank, unit, err));
    p->n_elements = round_up(p->n_elements);
    TP_TRY(params_deal(p, l, mesh_coord_of(&l->spec, rank), arena, err));
done:
    return st;
}

int params_find(const struct params *p, const struct layout *l, enum role role, int layer)
{
    for (int i = 0; i < p->n; i++) {
        const struct tensor *t = &l->tensors[p->list[i].tensor];

        if (t->role == role && t->layer == layer)
            return i;
    }
    return -1;
}

int params_find_box(const struct params *p, const struct layout *l, const char *name,
                    const struct box *box)
{
    for (int i = 0; i < p->n; i++)
        if (!strcmp(l->tensors[p->list[i].tensor].name, name) && box_contains(&p->list[i].box, box))
            return i;
    return -1;
}

int params_unit(const struct params *p, int unit)
{
    for (int i = 0; p->sharded && i < p->n_buckets; i++)
        if (p->buckets[i].unit == unit)
            return i;
    return -1;
}
