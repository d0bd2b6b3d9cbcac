/* layout/stored_box.c - see layout/stored_box.h. */
#include "layout/stored_box.h"

#include <stdlib.h>

#include "layout/column_blocks.h"
#include "layout/tensor_parts.h"

struct stored_box_writers {
    const struct layout *layout;
    int64_t *bytes_of;        /* [world] given to each rank so far */
    struct stored_box *boxes; /* NULL: only bytes are counted */
    int n;
};

/* The rank with the fewest bytes among those that hold tp part `part` of t and belong to the owner;
 * the lowest of equals. */
static int pick_writer(const struct stored_box_writers *list, const struct tensor *t,
                       const struct tensor_parts *p, int part, struct layout_owner owner)
{
    const struct spec *s = &list->layout->spec;
    int best = -1, ep = layout_ep_of(s, t), lanes = s->dp * s->cp / owner.of;

    for (int lane = owner.number * lanes; lane < (owner.number + 1) * lanes; lane++)
        for (int tp = part * p->repeat; tp < (part + 1) * p->repeat; tp++) {
            struct mesh_coord at = { layout_stage_rank(list->layout, t->layer), lane / s->cp,
                                     lane % s->cp, tp };
            int rank = mesh_rank_of(s, at);

            if (ep >= 0 && ep != mesh_ep_of(s, at))
                continue;
            if (best < 0 || list->bytes_of[rank] < list->bytes_of[best])
                best = rank;
        }
    return best;
}

/* Add a box as the column blocks in which it is stored, numbered from `part`. Returns their number;
 * *elements grows by what they hold. */
static int add_box(struct stored_box_writers *list, int t, int part, int writer,
                   const struct box *box, int64_t *elements)
{
    const struct tensor *tensor = &list->layout->tensors[t];
    struct box blocks[COLUMN_BLOCKS_MAX];
    int n = column_blocks(tensor, box, blocks);

    for (int i = 0; i < n; i++) {
        if (list->boxes)
            list->boxes[list->n++] = (struct stored_box){ t, part + i, writer, blocks[i] };
        list->bytes_of[writer] += box_elements(&blocks[i]) * dtype_bytes(tensor->dtype);
        *elements += box_elements(&blocks[i]);
    }
    return n;
}

/* Add all boxes of tensor t. Returns the number of elements in them. */
static int64_t add_tensor(struct stored_box_writers *list, int t)
{
    const struct tensor *tensor = &list->layout->tensors[t];
    const struct spec *s = &list->layout->spec;
    struct tensor_parts p = tensor_parts_of(tensor, s->tp);
    struct layout_owner owner = { .of = layout_owners(s, tensor) };
    int64_t elements = 0;

    for (int part = 0; part < p.parts; part++)
        for (owner.number = 0; owner.number < owner.of; owner.number++) {
            struct box boxes[TENSOR_BOXES_MAX];
            int n = tensor_parts_boxes(tensor, &p, part, boxes), writer;

            if (owner.of > 1)
                n = tensor_parts_shard(tensor, owner.of, owner.number, boxes, n);
            if (n == 0)
                continue;
            writer = pick_writer(list, tensor, &p, part, owner);
            for (int i = 0, number = 0; i < n; i++)
                number += add_box(list, t, number, writer, &boxes[i], &elements);
        }
    return elements;
}

static int by_rank_tensor_part(const void *a, const void *b)
{
    const struct stored_box *x = a, *y = b;

    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    if (x->tensor != y->tensor)
        return x->tensor < y->tensor ? -1 : 1;
    return x->part < y->part ? -1 : x->part > y->part;
}

/* Whether several ranks hold the same box of t, so that one must be chosen. */
static bool has_choice(const struct layout *l, const struct tensor *t)
{
    return tensor_parts_of(t, l->spec.tp).repeat > 1 ||
           l->spec.dp * l->spec.cp > layout_owners(&l->spec, t);
}

/* The most boxes that the tensors can be stored in. */
static int64_t boxes_max(const struct layout *l)
{
    int64_t n = 0;

    for (int t = 0; t < l->n_tensors; t++)
        n += (int64_t)tensor_parts_of(&l->tensors[t], l->spec.tp).parts *
             l->tensors[t].placement.blocks *
             (l->tensors[t].placement.dim > 0 ? COLUMN_BLOCKS_MAX : 1) *
             layout_owners(&l->spec, &l->tensors[t]);
    return n;
}

/* Add the tensors whose writer is fixed, or those where there is a choice. */
static tp_status add_tensors(struct stored_box_writers *list, bool choice, struct tp_err *err)
{
    const struct layout *l = list->layout;

    for (int i = 0; i < l->n_tensors; i++) {
        const struct tensor *t = &l->tensors[i];
        struct box whole = box_whole(t->ndim, t->shape);
        int64_t elements;

        if (has_choice(l, t) != choice)
            continue;
        elements = add_tensor(list, i);
        if (elements != box_elements(&whole))
            return tp_fail(err, TP_E_INTERNAL, "%s/%s: the boxes hold %lld elements, not %lld",
                           t->group, t->name, (long long)elements, (long long)box_elements(&whole));
    }
    return TP_OK;
}

tp_status stored_box_list(struct stored_box **boxes, int *n, const struct layout *l,
                          struct arena *arena, struct tp_err *err)
{
    struct stored_box_writers list = { .layout = l };
    int64_t room = boxes_max(l);
    tp_status st = TP_OK;

    list.bytes_of = calloc((size_t)spec_world(&l->spec), sizeof *list.bytes_of);
    list.boxes = room < INT32_MAX ? arena_array(arena, (size_t)room, sizeof *list.boxes) : NULL;
    if (!list.bytes_of || !list.boxes) {
        st = tp_fail(err, TP_E_NOMEM, "no memory for a list of %lld boxes", (long long)room);
        goto done;
    }
    TP_TRY(add_tensors(&list, false, err));
    TP_TRY(add_tensors(&list, true, err)); /* the choices come last, to balance the bytes */
    qsort(list.boxes, (size_t)list.n, sizeof *list.boxes, by_rank_tensor_part);
    *boxes = list.boxes;
    *n = list.n;
done:
    free(list.bytes_of);
    return st;
}

/* The first box of this rank or a later one. */
static int first_from(const struct stored_box *boxes, int n, int rank)
{
    int lo = 0;

    while (lo < n) {
        int middle = lo + (n - lo) / 2;

        if (boxes[middle].rank < rank)
            lo = middle + 1;
        else
            n = middle;
    }
    return lo;
}

int stored_box_of_rank(int *count, const struct stored_box *boxes, int n, int rank)
{
    int first = first_from(boxes, n, rank);

    *count = first_from(boxes + first, n - first, rank + 1);
    return first;
}

tp_status stored_box_rank_bytes(int64_t *bytes_of, const struct layout *l, struct tp_err *err)
{
    struct stored_box_writers list = { .layout = l, .bytes_of = bytes_of };
    tp_status st = add_tensors(&list, false, err);

    return st ? st : add_tensors(&list, true, err);
}
