/* reshard/formats/torch/dcp_items.c - see reshard/formats/torch/dcp_items.h. */
#include "reshard/formats/torch/dcp_items.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"

enum { COPY_BYTES = 64 << 10 };

static tp_status no_memory(struct tp_err *err)
{
    return tp_fail(err, TP_E_NOMEM, "no memory for the items of .metadata");
}

tp_status dcp_items_make(struct dcp_items *d, struct piece_target *pieces, const char *folder,
                         int n_ranks, struct tp_err *err)
{
    *d = (struct dcp_items){ .pieces = pieces,
                             .arena = piece_target_arena(pieces),
                             .folder = folder };
    d->ranks = arena_array(d->arena, (size_t)n_ranks, sizeof *d->ranks);
    return d->ranks ? TP_OK : no_memory(err);
}

void dcp_items_free(struct dcp_items *d)
{
    free(d->items);
    d->items = NULL;
}

/* A name from a path: the words of "optim", "state", "x" are "optim.state.x". NULL: memory is
 * out. */
static const char *name_of(struct dcp_items *d, const char *path)
{
    char *name = path ? arena_strdup(d->arena, path) : NULL;

    for (char *c = name; c && *c; c++)
        if (*c == *DCP_BELOW)
            *c = '.';
    return name;
}

struct dcp_new_item dcp_items_object(struct dcp_items *d, const char *path)
{
    return (struct dcp_new_item){ .item = { .name = name_of(d, path), .is_object = true },
                                  .path = path };
}

static tp_status add_item(struct dcp_items *d, const struct dcp_new_item *item, struct tp_err *err)
{
    if (!item->item.name)
        return no_memory(err);
    if (d->n == d->room) {
        const int room = d->room ? 2 * d->room : 256;
        struct dcp_new_item *grown = realloc(d->items, (size_t)room * sizeof *grown);

        if (!grown)
            return no_memory(err);
        d->items = grown;
        d->room = room;
    }
    d->items[d->n++] = *item;
    return TP_OK;
}

tp_status dcp_items_again(struct dcp_items *d, int i, const char *path, struct tp_err *err)
{
    struct dcp_new_item item = dcp_items_object(d, path);
    const char *name = item.item.name;

    item.item = d->items[i].item;
    item.item.name = name;
    return add_item(d, &item, err);
}

tp_status dcp_items_again_at(struct dcp_items *d, int i, const char *path, int64_t rows,
                             int64_t row, struct tp_err *err)
{
    tp_status st = dcp_items_again(d, i, path, err);

    if (!st) {
        d->items[d->n - 1].item.shape[0] = rows;
        d->items[d->n - 1].item.box.lo[0] = row;
    }
    return st;
}

tp_status dcp_items_begin(struct torch_target *x, struct dcp_items *d, int rank,
                          const struct dcp_new_item *item, struct tp_err *err)
{
    struct dcp_rank_file *f = &d->ranks[rank];
    tp_status st;

    if (!f->name) {
        const char *path = arena_printf(d->arena, "%s__%d_0.distcp", d->folder, rank);

        f->name = arena_printf(d->arena, "__%d_0.distcp", rank);
        if (!path || !f->name)
            return no_memory(err);
        st = piece_target_file(d->pieces, &f->file, path, err);
        if (st)
            return st;
    }
    st = add_item(d, item, err);
    if (st)
        return st;
    d->items[d->n - 1].item.file = f->name;
    d->items[d->n - 1].item.begin = f->end;
    torch_target_begin(x, d->pieces, f->file, f->end);
    return TP_OK;
}

/* The next item begins after the last one. */
static void end_item(struct dcp_items *d, int rank)
{
    const int64_t size = d->items[d->n - 1].item.size;

    d->ranks[rank].end += (size + ZIP_PLAN_ALIGN - 1) / ZIP_PLAN_ALIGN * ZIP_PLAN_ALIGN;
}

tp_status dcp_items_end(struct torch_target *x, struct dcp_items *d, int rank, struct tp_err *err)
{
    tp_status st = torch_target_end(x, &d->items[d->n - 1].item.size, err);

    torch_target_free(x);
    end_item(d, rank);
    return st;
}

static tp_status copy_bytes(const struct file_part *to, int64_t at, const struct file_part *from,
                            int64_t begin, int64_t size, struct tp_err *err)
{
    char bytes[COPY_BYTES];
    tp_status st = TP_OK;

    for (int64_t done = 0, n; done < size && !st; done += n) {
        n = size - done < COPY_BYTES ? size - done : COPY_BYTES;
        st = file_part_read(from, begin + done, bytes, n, err);
        if (!st)
            st = file_write_at(to->object.fd, to->path, at + done, bytes, (size_t)n, err);
    }
    return st;
}

tp_status dcp_items_copy(struct dcp_items *d, int rank, const struct dcp_new_item *item,
                         const struct dcp_items_bytes *from, struct tp_err *err)
{
    struct file_part in, out;
    struct torch_target x;
    tp_status st = dcp_items_begin(&x, d, rank, item, err);

    if (st)
        return st;
    torch_target_free(&x); /* nothing is pickled */
    d->items[d->n - 1].item.size = from->size;
    st = file_table_use(from->files, from->file, &in, err);
    if (st)
        return st;
    st = piece_target_use(d->pieces, d->ranks[rank].file, &out, err);
    if (!st) {
        st = copy_bytes(&out, d->ranks[rank].end, &in, from->begin, from->size, err);
        piece_target_release(d->pieces, d->ranks[rank].file);
    }
    file_table_release(from->files, from->file);
    end_item(d, rank);
    return st;
}

static int compare_items(const void *a, const void *b)
{
    const struct dcp_item *x = &((const struct dcp_new_item *)a)->item,
                          *y = &((const struct dcp_new_item *)b)->item;
    int order = strcmp(x->name, y->name);

    for (int d = 0; d < x->ndim && d < y->ndim && order == 0; d++)
        order = (x->box.lo[d] > y->box.lo[d]) - (x->box.lo[d] < y->box.lo[d]);
    return order;
}

void dcp_items_sort(struct dcp_items *d)
{
    if (d->n > 0)
        qsort(d->items, (size_t)d->n, sizeof *d->items, compare_items);
}

tp_status dcp_items_write(const struct dcp_items *d, const char *dir, struct tp_err *err)
{
    char path[PATH_MAX];
    tp_status st = file_join(path, dir, ".metadata", err);

    return st ? st : dcp_metadata_write(path, d->items, d->n, err);
}
