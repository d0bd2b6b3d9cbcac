/* reshard/formats/torch/dcp_items.c - see reshard/formats/torch/dcp_items.h. */
#include "reshard/formats/torch/dcp_items.h"

#include <limits.h>
#include <stdlib.h>

#include "core/file.h"

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

const char *dcp_items_name(struct dcp_items *d, const char *path)
{
    char *name = path ? arena_strdup(d->arena, path) : NULL;

    for (char *c = name; c && *c; c++)
        if (*c == '/')
            *c = '.';
    return name;
}

tp_status dcp_items_add(struct dcp_items *d, const struct dcp_new_item *item, struct tp_err *err)
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
    st = dcp_items_add(d, item, err);
    if (st)
        return st;
    d->items[d->n - 1].item.file = f->name;
    d->items[d->n - 1].item.begin = f->end;
    torch_target_begin(x, d->pieces, f->file, f->end);
    return TP_OK;
}

tp_status dcp_items_end(struct torch_target *x, struct dcp_items *d, int rank, struct tp_err *err)
{
    struct dcp_item *item = &d->items[d->n - 1].item;
    tp_status st = torch_target_end(x, &item->size, err);

    torch_target_free(x);
    d->ranks[rank].end += (item->size + ZIP_PLAN_ALIGN - 1) / ZIP_PLAN_ALIGN * ZIP_PLAN_ALIGN;
    return st;
}

tp_status dcp_items_write(const struct dcp_items *d, const char *dir, struct tp_err *err)
{
    char path[PATH_MAX];
    tp_status st = file_join(path, dir, ".metadata", err);

    return st ? st : dcp_metadata_write(path, d->items, d->n, err);
}
