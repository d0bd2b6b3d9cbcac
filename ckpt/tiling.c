/* ckpt/tiling.c - see ckpt/tiling.h. */
#include "ckpt/tiling.h"

#include <stdlib.h>

/* The box of a dataset. */
struct tiling_box {
    struct box box;
    int tensor, shard;
};

struct tiling {
    const char *dir;
    const struct manifest *m;
    struct tiling_box *boxes; /* [n] */
    int64_t n, room;
    int64_t *first; /* [n_tensors + 1] of the sorted boxes; NULL: not sorted */
};

tp_status tiling_begin(struct tiling **out, const char *dir, const struct manifest *m,
                       struct tp_err *err)
{
    struct tiling *t = calloc(1, sizeof *t);

    if (!t)
        return tp_fail(err, TP_E_NOMEM, "no memory for the boxes of %s", dir);
    t->dir = dir;
    t->m = m;
    *out = t;
    return TP_OK;
}

void tiling_end(struct tiling *t)
{
    if (!t)
        return;
    free(t->boxes);
    free(t->first);
    free(t);
}

static tp_status make_room(struct tiling *t, struct tp_err *err)
{
    int64_t room = t->room ? 2 * t->room : 256;
    void *boxes;

    if (t->n < t->room)
        return TP_OK;
    boxes = realloc(t->boxes, (size_t)room * sizeof *t->boxes);
    if (!boxes)
        return tp_fail(err, TP_E_NOMEM, "no memory for the boxes of %s", t->dir);
    t->boxes = boxes;
    t->room = room;
    return TP_OK;
}

/* The chunks of one dataset are consecutive, which shard_open has checked; they make one box. */
tp_status tiling_add(struct tiling *t, int shard, const struct chunk_entry *chunks, int64_t n,
                     struct tp_err *err)
{
    for (int64_t r = 0; r < n; r++) {
        const struct chunk_entry *c = &chunks[r];
        tp_status st;

        if (r > 0 && c->tensor == c[-1].tensor && c->part == c[-1].part) {
            struct box *last = &t->boxes[t->n - 1].box;

            for (int d = 0; d < c->box.ndim; d++)
                last->len[d] = c->box.lo[d] + c->box.len[d] - last->lo[d];
            continue;
        }
        if ((st = make_room(t, err)))
            return st;
        t->boxes[t->n++] = (struct tiling_box){ c->box, c->tensor, shard };
    }
    return TP_OK;
}

/* By tensor, then by offset along the first axis. */
static int by_place(const void *a, const void *b)
{
    const struct tiling_box *x = a, *y = b;

    if (x->tensor != y->tensor)
        return x->tensor < y->tensor ? -1 : 1;
    if (x->box.ndim > 0 && x->box.lo[0] != y->box.lo[0])
        return x->box.lo[0] < y->box.lo[0] ? -1 : 1;
    return x->shard - y->shard;
}

static tp_status sort_boxes(struct tiling *t, struct tp_err *err)
{
    const int n_tensors = t->m->layout.n_tensors;

    t->first = calloc((size_t)n_tensors + 1, sizeof *t->first);
    if (!t->first)
        return tp_fail(err, TP_E_NOMEM, "no memory for the boxes of %s", t->dir);
    if (t->n > 0)
        qsort(t->boxes, (size_t)t->n, sizeof *t->boxes, by_place);
    for (int64_t i = 0; i < t->n; i++)
        t->first[t->boxes[i].tensor + 1]++;
    for (int i = 0; i < n_tensors; i++)
        t->first[i + 1] += t->first[i];
    return TP_OK;
}

/* A box that overlaps boxes[0] and comes after it, or NULL. They are sorted by the first axis, so
 * none behind its end does. */
static const struct tiling_box *find_overlap(const struct tiling_box *boxes, int64_t n)
{
    const struct box *b = &boxes[0].box;
    struct box overlap;

    for (int64_t k = 1; k < n; k++) {
        if (b->ndim > 0 && boxes[k].box.lo[0] >= b->lo[0] + b->len[0])
            break;
        if (box_meet(&overlap, b, &boxes[k].box))
            return &boxes[k];
    }
    return NULL;
}

tp_status tiling_check(struct tiling *t, int tensor, struct tp_err *err)
{
    const struct manifest *m = t->m;
    const struct tensor *what = &m->layout.tensors[tensor];
    const struct box whole = box_whole(what->ndim, what->shape);
    int64_t elements = 0, expected = box_elements(&whole), end;
    char a[BOX_TEXT_MAX], b[BOX_TEXT_MAX];
    tp_status st = t->first ? TP_OK : sort_boxes(t, err);

    if (st)
        return st;
    end = t->first[tensor + 1];
    for (int64_t i = t->first[tensor]; i < end; i++) {
        const struct tiling_box *x = &t->boxes[i], *y = find_overlap(x, end - i);

        elements += box_elements(&x->box);
        if (y)
            return tp_fail(
                err, TP_E_CORRUPT, "%s: tensor %s/%s: the boxes %s in %s and %s in %s overlap",
                t->dir, what->group, what->name, box_format(a, &x->box), m->shards[x->shard].file,
                box_format(b, &y->box), m->shards[y->shard].file);
    }
    if (elements != expected)
        return tp_fail(err, TP_E_CORRUPT,
                       "%s: tensor %s/%s has %lld elements in %lld boxes, expected %lld: "
                       "%lld are in no shard",
                       t->dir, what->group, what->name, (long long)elements,
                       (long long)(end - t->first[tensor]), (long long)expected,
                       (long long)(expected - elements));
    return TP_OK;
}
