/* trainer/data_parallel/params_partition.c - which rank of dp updates which rows, and in what runs
 * of entries they are sent; see trainer/data_parallel/params.h and
 * trainer/data_parallel/bucket_transfer.h. */
#include "layout/memory.h"
#include "trainer/data_parallel/params.h"

enum { GAP_ELEMENTS = 16 }; /* what an owner has of a tensor starts on a cache line */

/* The rows of entry q that dp rank `owner` updates: what the entry has of the owner's boxes. Those
 * are disjoint rows of the fused parts of a tensor, and an entry lies within one part, so it meets
 * at most one, in whole rows of its own. */
static struct piece piece_of(const struct params *p, const struct param *q, const struct layout *l,
                             int tp_rank, int owner)
{
    struct box boxes[TENSOR_BOXES_MAX], meet;
    struct piece piece = { .box = q->box, .from = q->at, .n = q->n };
    int n;

    if (p->n_owners == 1 || !q->n)
        return piece;
    n = layout_dp_boxes(&l->tensors[q->tensor], &l->spec, tp_rank, owner, boxes);
    piece.n = 0;
    for (int i = 0; i < n; i++)
        if (box_meet(&meet, &q->box, &boxes[i])) {
            piece.box = meet;
            piece.n = box_elements(&meet);
            piece.from += box_offset_in(&q->box, &meet);
        }
    return piece;
}

/* Whether an entry goes straight behind the one before it, as k and v do: then what an owner has of
 * both is one run too. */
static bool continues(const struct params *p, int i)
{
    return i > 0 && p->list[i].at == p->list[i - 1].at + p->list[i - 1].n;
}

/* Deal every entry to `owner`. */
static void deal_to(struct params *p, const struct layout *l, int tp_rank, int owner)
{
    int64_t to = 0;

    for (int i = 0; i < p->n; i++) {
        struct piece *x = &p->pieces[owner * p->n + i];

        *x = piece_of(p, &p->list[i], l, tp_rank, owner);
        if (!continues(p, i))
            to = (to + GAP_ELEMENTS - 1) / GAP_ELEMENTS * GAP_ELEMENTS;
        x->to = to;
        to += x->n;
    }
    p->n_owned = to > p->n_owned ? to : p->n_owned;
}

/* Lay out every owner's part of a bucket's packs. A piece of weights begins on a whole float. */
static void lay_out_packs(struct params *p, struct bucket *b)
{
    for (int owner = 0; owner < p->n_owners; owner++) {
        int64_t at = 0, bytes = 0;

        for (int i = b->first; i < b->first + b->n; i++) {
            struct piece *x = &p->pieces[owner * p->n + i];

            x->packed = at;
            x->grad = p->n_owners > 1 ? b->from + at : x->from;
            x->packed_bytes = bytes;
            at += x->n;
            bytes += (x->n * dtype_bytes(p->list[i].type) + 3) / 4 * 4;
        }
        b->each = at > b->each ? at : b->each;
        b->weights_each = bytes / 4 > b->weights_each ? bytes / 4 : b->weights_each;
    }
}

/* Whether bucket b, which has `sum` elements, goes on with entry i: shared k and v of a layer stay
 * together, for they are summed in one call. */
static bool takes(const struct params *p, const struct bucket *b, int64_t sum, int i)
{
    if (i == p->n)
        return false;
    if (p->sharded)
        return b->n == 0 || p->list[i].unit == b->unit;
    return sum < MEMORY_BUCKET || (p->list[i].shared && continues(p, i));
}

static void fill_buckets(struct params *p)
{
    for (int i = 0; i < p->n;) {
        struct bucket *b = &p->buckets[p->n_buckets++];
        int64_t sum = 0;

        *b = (struct bucket){ .first = i, .from = p->list[i].at, .unit = p->list[i].unit };
        while (takes(p, b, sum, i)) {
            if (params_is_before(b->unit, p->list[i].unit))
                b->unit = p->list[i].unit;
            sum += p->list[i++].n;
            b->n++;
        }
        b->to = i < p->n ? p->list[i].at : p->n_elements;
        lay_out_packs(p, b);
    }
}

tp_status params_deal(struct params *p, const struct layout *l, struct mesh_coord at,
                      struct arena *arena, struct tp_err *err)
{
    p->n_owners = l->spec.zero ? l->spec.dp : 1;
    p->pieces = arena_array(arena, (size_t)p->n_owners * (size_t)p->n + 1, sizeof *p->pieces);
    p->buckets = arena_array(arena, (size_t)p->n + 1, sizeof *p->buckets);
    if (!p->pieces || !p->buckets)
        return tp_fail(err, TP_E_NOMEM, "no memory for the list of parameters");
    for (int owner = 0; owner < p->n_owners; owner++)
        deal_to(p, l, at.tp, owner);
    fill_buckets(p);
    p->n_packs = p->sharded || p->n_buckets == 1 ? 1 : PARAMS_PACKS_MAX;
    for (int i = 0; i < p->n; i++) {
        struct param *q = &p->list[i];

        q->own = p->pieces[(p->n_owners > 1 ? at.dp : 0) * p->n + i];
        if (q->partial)
            p->n_partial += p->sharded ? q->own.n : q->n;
    }
    return TP_OK;
}
