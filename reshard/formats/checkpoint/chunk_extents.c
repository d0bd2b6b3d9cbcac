/* reshard/formats/checkpoint/chunk_extents.c - see reshard/formats/checkpoint/chunk_extents.h. */
#include "reshard/formats/checkpoint/chunk_extents.h"

#include <stdlib.h>

const struct chunk_entry *chunk_extents_chunk(const struct chunk_extents *x, int extent, int64_t i)
{
    const struct chunk_extents_box *b = &x->boxes[extent];

    return &x->shards[b->shard].chunks[x->order[b->first + i]];
}

int64_t chunk_extents_begin(const struct chunk_extents *x, int extent, int64_t i)
{
    const struct reshard_extent *e = &x->extents[extent];

    return box_offset_in(&e->box, &chunk_extents_chunk(x, extent, i)->box) *
           dtype_bytes(x->dtypes[e->tensor]);
}

int64_t chunk_extents_at(const struct chunk_extents *x, int extent, int64_t at)
{
    int64_t low = 0, high = x->boxes[extent].n - 1;

    while (low < high) {
        int64_t mid = low + (high - low + 1) / 2;

        if (chunk_extents_begin(x, extent, mid) <= at)
            low = mid;
        else
            high = mid - 1;
    }
    return low;
}

/* Order by tensor, part, and position in the box. The chunks of a box are runs of it, so their
 * first corners ascend lexicographically. */
static int by_position(const void *a, const void *b, void *arg)
{
    const struct chunk_entry *chunks = arg;
    const struct chunk_entry *x = &chunks[*(const int64_t *)a], *y = &chunks[*(const int64_t *)b];

    if (x->tensor != y->tensor)
        return x->tensor < y->tensor ? -1 : 1;
    if (x->part != y->part)
        return x->part < y->part ? -1 : 1;
    for (int d = 0; d < x->box.ndim; d++)
        if (x->box.lo[d] != y->box.lo[d])
            return x->box.lo[d] < y->box.lo[d] ? -1 : 1;
    return 0;
}

/* The smallest box around n chunks. */
static struct box bounding_box(const struct chunk_entry *chunks, const int64_t *order, int64_t n)
{
    struct box b = chunks[order[0]].box;

    for (int64_t i = 1; i < n; i++)
        for (int d = 0; d < b.ndim; d++) {
            const struct box *c = &chunks[order[i]].box;
            int64_t end = b.lo[d] + b.len[d], c_end = c->lo[d] + c->len[d];

            b.lo[d] = c->lo[d] < b.lo[d] ? c->lo[d] : b.lo[d];
            b.len[d] = (c_end > end ? c_end : end) - b.lo[d];
        }
    return b;
}

/* The chunks of an extent must follow one another in the storage of its box and fill it. */
static tp_status check_extent(const struct chunk_extents *x, int extent, struct tp_err *err)
{
    const struct reshard_extent *e = &x->extents[extent];
    const char *file = x->m->shards[x->boxes[extent].shard].file;
    const char *name = x->m->layout.tensors[chunk_extents_chunk(x, extent, 0)->tensor].name;
    int64_t at = 0;
    char text[BOX_TEXT_MAX];

    for (int64_t i = 0; i < x->boxes[extent].n; i++) {
        const struct chunk_entry *c = chunk_extents_chunk(x, extent, i);

        if (!box_is_run_in(&e->box, &c->box) || chunk_extents_begin(x, extent, i) != at)
            break;
        at += c->raw_bytes;
    }
    if (at == box_elements(&e->box) * dtype_bytes(x->dtypes[e->tensor]))
        return TP_OK;
    return tp_fail(err, TP_E_CORRUPT,
                   "%s/%s: tensor %s: chunks are missing: they do not make up the box %s", x->dir,
                   file, name, box_format(text, &e->box));
}

static tp_status grow_extents(struct chunk_extents *x, struct tp_err *err)
{
    int64_t room = x->room ? 2 * x->room : 1024;
    void *extents, *boxes;

    if (x->n < x->room)
        return TP_OK;
    extents = realloc(x->extents, (size_t)room * sizeof *x->extents);
    if (extents)
        x->extents = extents;
    boxes = realloc(x->boxes, (size_t)room * sizeof *x->boxes);
    if (boxes)
        x->boxes = boxes;
    if (!extents || !boxes)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", x->dir);
    x->room = room;
    return TP_OK;
}

static bool same_dataset(const struct chunk_entry *a, const struct chunk_entry *b)
{
    return a->tensor == b->tensor && a->part == b->part;
}

/* Make an extent of each group of chunks order[begin ..] that belong to one dataset. */
static tp_status add_extents(struct chunk_extents *x, int shard, int64_t begin, struct tp_err *err)
{
    const struct chunk_entry *chunks = x->shards[shard].chunks;
    int64_t next;
    tp_status st = TP_OK;

    for (int64_t i = begin; i < x->n_order; i = next) {
        const struct chunk_entry *c = &chunks[x->order[i]];
        int extent = x->n;

        for (next = i + 1; next < x->n_order && same_dataset(c, &chunks[x->order[next]]); next++)
            ;
        TP_TRY(grow_extents(x, err));
        x->boxes[extent] = (struct chunk_extents_box){ shard, i, next - i };
        x->extents[extent].tensor = x->number_of[c->tensor];
        x->extents[extent].box = bounding_box(chunks, x->order + i, next - i);
        x->n++;
        TP_TRY(check_extent(x, extent, err));
    }
done:
    return st;
}

tp_status chunk_extents_add(struct chunk_extents *x, int number, bool *any, struct tp_err *err)
{
    const struct shard_parts *shard = &x->shards[number];
    const int64_t begin = x->n_order;
    int64_t *order = realloc(x->order, (size_t)(begin + shard->n_chunks + 1) * sizeof *order);

    if (!order)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", x->dir);
    x->order = order;
    for (int64_t k = 0; k < shard->n_chunks; k++)
        if (x->number_of[shard->chunks[k].tensor] >= 0)
            x->order[x->n_order++] = k;
    *any = x->n_order > begin;
    qsort_r(x->order + begin, (size_t)(x->n_order - begin), sizeof *x->order, by_position,
            (void *)(uintptr_t)shard->chunks);
    return add_extents(x, number, begin, err);
}

void chunk_extents_free(struct chunk_extents *x)
{
    free(x->boxes);
    free(x->extents);
    free(x->order);
}
