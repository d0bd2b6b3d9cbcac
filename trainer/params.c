/* trainer/params.c - see trainer/params.h. */
#include "trainer/params.h"

#include <inttypes.h>
#include <string.h>

#include "kernels/cast.h"
#include "layout/memory.h"
#include "trainer/parallel.h"

enum { GAP_ELEMENTS = 16 }; /* tensors start on cache lines */

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

static tp_status add_entry(struct params *p, const struct layout *l, const struct param *entry,
                           bool joins, struct tp_err *err)
{
    struct param *q = &p->list[p->n++];

    *q = *entry;
    if (!joins)
        p->n_elements = (p->n_elements + GAP_ELEMENTS - 1) / GAP_ELEMENTS * GAP_ELEMENTS;
    q->at = p->n_elements;
    if (__builtin_add_overflow(p->n_elements, q->n, &p->n_elements))
        return tp_fail(err, TP_E_LAYOUT, "%s: too many parameters", l->tensors[q->tensor].name);
    return TP_OK;
}

/* The boxes of tensor t that tensor parallelism gives this rank. */
static tp_status add(struct params *p, const struct layout *l, int t, int rank, int parts,
                     bool copy, struct tp_err *err)
{
    const struct tensor *tensor = &l->tensors[t];
    struct mesh_coord at = mesh_coord_of(&l->spec, rank);
    struct box boxes[TENSOR_BOXES_MAX];
    int n = layout_tp_boxes(tensor, &l->spec, at.tp, boxes);
    bool first = parallel_first_holder(tensor, &l->spec, at.tp) == at.tp;
    struct param q = { .tensor = t,
                       .decay = tensor->ndim >= 2,
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
        p->n_partial += q.partial ? q.n : 0;
        if ((st = add_entry(p, l, &q, q.part > 0 || joins_previous(l, t), err)))
            return st;
    }
    return TP_OK;
}

/* Whether tensor t is an embedding that is the head too and pipelines put at both ends. The first
 * stage owns it, the last has a copy. */
static bool is_at_both_ends(const struct layout *l, int t)
{
    if (l->tensors[t].role != ROLE_EMBEDDING || l->spec.pp == 1)
        return false;
    for (int i = 0; i < l->n_tensors; i++)
        if (l->tensors[i].role == ROLE_HEAD)
            return false;
    return true;
}

/* The rows of entry q that dp rank `owner` updates: what the entry has of the owner's boxes. Those
 * are disjoint rows of the fused parts of a tensor, and an entry lies within one part, so it meets
 * at most one, in whole rows of its own. `to` is behind what the owner has already. */
static struct piece piece_of(const struct params *p, const struct param *q, const struct layout *l,
                             int tp_rank, int owner, int64_t *to)
{
    struct box boxes[TENSOR_BOXES_MAX], meet;
    struct piece piece = { .box = q->box, .from = q->at, .n = q->n, .to = *to };

    if (p->n_owners > 1 && q->n) {
        int n = layout_dp_boxes(&l->tensors[q->tensor], &l->spec, tp_rank, owner, boxes);

        piece.n = 0;
        for (int i = 0; i < n; i++)
            if (box_meet(&meet, &q->box, &boxes[i])) {
                piece.box = meet;
                piece.n = box_elements(&meet);
                piece.from += box_offset_in(&q->box, &meet);
            }
    }
    *to += (piece.n + GAP_ELEMENTS - 1) / GAP_ELEMENTS * GAP_ELEMENTS;
    return piece;
}

/* Close a bucket once it has MEMORY_BUCKET elements, and lay out its owners' parts. */
static void fill_buckets(struct params *p)
{
    for (int first = 0; first < p->n;) {
        struct bucket *b = &p->buckets[p->n_buckets++];
        int64_t sum = 0;

        *b = (struct bucket){ .first = first };
        while (first < p->n && sum < MEMORY_BUCKET) {
            sum += p->list[first++].n;
            b->n++;
        }
        for (int owner = 0; owner < p->n_owners; owner++) {
            int64_t at = 0;

            for (int i = b->first; i < b->first + b->n; i++) {
                struct piece *x = &p->pieces[owner * p->n + i];

                x->packed = at;
                at += x->n;
            }
            b->each = at > b->each ? at : b->each;
        }
    }
}

static int64_t largest_bucket(const struct params *p)
{
    int64_t largest = 0;

    for (int i = 0; i < p->n_buckets; i++)
        largest = p->buckets[i].each > largest ? p->buckets[i].each : largest;
    return largest;
}

static tp_status deal_pieces(struct params *p, const struct layout *l, struct mesh_coord at,
                             struct arena *arena, struct tp_err *err)
{
    p->n_owners = l->spec.zero ? l->spec.dp : 1;
    p->pieces = arena_array(arena, (size_t)p->n_owners * (size_t)p->n + 1, sizeof *p->pieces);
    p->buckets = arena_array(arena, (size_t)p->n + 1, sizeof *p->buckets);
    if (!p->pieces || !p->buckets)
        return tp_fail(err, TP_E_NOMEM, "no memory for the list of parameters");
    for (int owner = 0; owner < p->n_owners; owner++) {
        int64_t to = 0;

        for (int i = 0; i < p->n; i++)
            p->pieces[owner * p->n + i] = piece_of(p, &p->list[i], l, at.tp, owner, &to);
        if (to > p->n_moments)
            p->n_moments = to;
    }
    if (p->n_owners > 1)
        fill_buckets(p);
    for (int i = 0; i < p->n; i++)
        p->list[i].own = p->pieces[(p->n_owners > 1 ? at.dp : 0) * p->n + i];
    return TP_OK;
}

tp_status params_init(struct params *p, const struct layout *l, int rank, enum dtype dtype,
                      struct arena *arena, struct tp_err *err)
{
    tp_status st;
    size_t most = 0;

    *p = (struct params){ .dtype = dtype, .tied = -1 };
    for (int t = 0; t < l->n_tensors; t++)
        most += (size_t)l->tensors[t].rule.blocks;
    p->list = arena_array(arena, most, sizeof *p->list);
    if (!p->list)
        return tp_fail(err, TP_E_NOMEM, "no memory for the list of parameters");
    for (int t = 0; t < l->n_tensors; t++) {
        bool ends = is_at_both_ends(l, t);
        bool copy = ends && mesh_coord_of(&l->spec, rank).pp == l->spec.pp - 1;
        int parts = copy ? 1 : parts_of(l, t, rank);

        if (strcmp(l->tensors[t].group, GROUP_PARAM) != 0)
            continue;
        if (ends && parts)
            p->tied = p->n;
        if ((st = add(p, l, t, rank, parts, copy, err)))
            return st;
    }
    p->n_elements = (p->n_elements + GAP_ELEMENTS - 1) / GAP_ELEMENTS * GAP_ELEMENTS;
    return deal_pieces(p, l, mesh_coord_of(&l->spec, rank), arena, err);
}

void params_take(struct params *p, struct span *shared, struct span *own)
{
    p->grad = span_take(shared, p->n_elements, sizeof(float));
    if (p->n_partial)
        p->partial = span_take(shared, p->n_partial, sizeof(float));
    p->value = span_take(own, p->n_elements, sizeof(float));
    p->exp_avg = span_take(own, p->n_moments, sizeof(float));
    p->exp_avg_sq = span_take(own, p->n_moments, sizeof(float));
    if (p->n_owners > 1)
        p->pack = span_take(shared, p->n_owners * largest_bucket(p), sizeof(float));
    if (p->dtype == DTYPE_BF16)
        p->value_bf16 = span_take(own, p->n_elements, sizeof(uint16_t));
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

const void *params_operand(const struct params *p, int64_t at)
{
    if (p->dtype == DTYPE_BF16)
        return p->value_bf16 + at;
    return p->value + at;
}

void params_round(struct params *p)
{
    if (p->value_bf16)
        cast(p->value_bf16, DTYPE_BF16, p->value, DTYPE_F32, p->n_elements);
}

void *params_place(const struct params *p, const struct layout *l, const struct tensor *t,
                   const struct box *box, struct box *within, enum dtype *dtype)
{
    int i = params_find_box(p, l, t->name, box);
    const struct param *q = &p->list[i < 0 ? 0 : i];

    if (i < 0)
        return NULL;
    *dtype = DTYPE_F32;
    *within = q->box;
    if (!strcmp(t->group, p->dtype == DTYPE_BF16 ? GROUP_MASTER : GROUP_PARAM))
        return p->value + q->at;
    if (!strcmp(t->group, GROUP_PARAM)) {
        *dtype = DTYPE_BF16;
        return p->value_bf16 + q->at;
    }
    *within = q->own.box;
    if (!box_contains(within, box))
        return NULL;
    if (!strcmp(t->group, GROUP_EXP_AVG))
        return p->exp_avg + q->own.to;
    return strcmp(t->group, GROUP_EXP_AVG_SQ) ? NULL : p->exp_avg_sq + q->own.to;
}
