/*
 * reshard/formats/torch/dcp_metadata.c - see reshard/formats/torch/dcp_metadata.h. The classes in
 * the pickle: torch/distributed/checkpoint/metadata.py and filesystem.py.
 */
#include "reshard/formats/torch/dcp_metadata.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/file.h"
#include "core/size.h"
#include "torch/pickle_copy.h"
#include "torch/torch_tensor.h"

#define METADATA "torch.distributed.checkpoint.metadata"

enum { WINDOW_BYTES = 64 << 10 };

/* Where an item is stored: a row of storage_data. */
struct dcp_place {
    const char *name;
    int ndim; /* -1: an object */
    int64_t lo[BOX_NDIM_MAX];
    const struct pickle_value *info;
};

/* A row of planner_data. */
struct dcp_path {
    const char *name;
    const struct pickle_value *value;
};

struct dcp_metadata {
    const char *path;
    struct arena values; /* of the pickle */
    struct arena *arena; /* of the items */
    struct dcp_place *places;
    int64_t n_places;
    struct dcp_path *paths;
    int64_t n_paths;
    const struct pickle_value *megatron; /* DCP_CUTS */
    struct dcp_item *items;
    int64_t n, most;
};

static tp_status damaged(const struct dcp_metadata *x, const char *name, const char *what,
                         struct tp_err *err)
{
    return tp_fail(err, TP_E_CORRUPT, "%s: %s: %s", x->path, name ? name : "an entry", what);
}

static tp_status no_memory(const struct dcp_metadata *x, struct tp_err *err)
{
    return tp_fail(err, TP_E_NOMEM, "%s: no memory for its entries", x->path);
}

/* The numbers of a torch.Size: a call with a tuple, or a tuple. */
static bool read_size(int *n, int64_t *numbers, const struct pickle_value *v)
{
    if (pickle_is_call(v, "torch", "Size"))
        v = pickle_item(v->object.args, 0);
    if ((!pickle_is(v, PICKLE_TUPLE) && !pickle_is(v, PICKLE_LIST)) ||
        pickle_count(v) > BOX_NDIM_MAX)
        return false;
    *n = (int)pickle_count(v);
    for (int i = 0; i < *n; i++)
        if (!pickle_int(&numbers[i], pickle_item(v, i)) || numbers[i] < 0)
            return false;
    return true;
}

static int by_place(const void *a, const void *b)
{
    const struct dcp_place *x = a, *y = b;
    int order = strcmp(x->name, y->name);

    if (!order)
        order = (x->ndim > y->ndim) - (x->ndim < y->ndim);
    for (int d = 0; d < x->ndim && !order; d++)
        order = (x->lo[d] > y->lo[d]) - (x->lo[d] < y->lo[d]);
    return order;
}

static tp_status read_places(struct dcp_metadata *x, const struct pickle_value *storage,
                             struct tp_err *err)
{
    int64_t n = pickle_entries(storage);

    x->places = arena_array(&x->values, (size_t)n + 1, sizeof *x->places);
    if (!x->places)
        return no_memory(x, err);
    for (int64_t i = 0; i < n; i++) {
        const struct pickle_value *key = pickle_key(storage, i), *lo = pickle_get(key, "offset");
        struct dcp_place *p = &x->places[x->n_places++];

        p->name = pickle_text(pickle_get(key, "fqn"));
        p->info = pickle_entry(storage, i);
        p->ndim = -1;
        if (!p->name || !*p->name)
            return damaged(x, NULL, "it has no name", err);
        if (lo && !pickle_is(lo, PICKLE_NONE) && !read_size(&p->ndim, p->lo, lo))
            return damaged(x, p->name, "its offsets are wrong", err);
    }
    qsort(x->places, (size_t)n, sizeof *x->places, by_place);
    return TP_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct dcp_path *)a)->name, ((const struct dcp_path *)b)->name);
}

/* What is not a dict is another program's. */
static tp_status read_paths(struct dcp_metadata *x, const struct pickle_value *planner,
                            struct tp_err *err)
{
    const int64_t n = pickle_entries(planner);

    x->paths = arena_array(&x->values, (size_t)n + 1, sizeof *x->paths);
    if (!x->paths)
        return no_memory(x, err);
    for (int64_t i = 0; i < n; i++) {
        struct dcp_path *p = &x->paths[x->n_paths];

        *p = (struct dcp_path){ pickle_text(pickle_key(planner, i)), pickle_entry(planner, i) };
        x->n_paths += p->name && pickle_is(p->value, PICKLE_TUPLE) && pickle_copy_can(p->value);
    }
    qsort(x->paths, (size_t)x->n_paths, sizeof *x->paths, by_name);
    return TP_OK;
}

static tp_status find_path(struct dcp_item *item, const struct dcp_metadata *x, struct tp_err *err)
{
    const struct dcp_path key = { .name = item->name },
                          *p = bsearch(&key, x->paths, (size_t)x->n_paths, sizeof key, by_name);
    struct pickle_writer w = { 0 };
    void *copy = NULL;

    if (!p)
        return TP_OK;
    pickle_copy(&w, p->value);
    if (!w.failed)
        copy = arena_alloc(x->arena, w.n);
    if (copy)
        memcpy(copy, w.data, w.n);
    item->planner = copy;
    item->planner_bytes = w.n;
    pickle_writer_free(&w);
    return copy ? TP_OK : no_memory(x, err);
}

/* Add an item, which is stored where its name and offsets are in storage_data. */
static tp_status add_item(struct dcp_metadata *x, const struct dcp_item *item, struct tp_err *err)
{
    struct dcp_place key = { .name = item->name, .ndim = item->is_object ? -1 : item->ndim }, *p;
    const struct pickle_value *transforms;
    struct dcp_item *to;
    const char *file;

    memcpy(key.lo, item->box.lo, sizeof key.lo);
    p = bsearch(&key, x->places, (size_t)x->n_places, sizeof key, by_place);
    if (!p && item->is_object) { /* an object may have an index of its own */
        key.ndim = 0;
        p = bsearch(&key, x->places, (size_t)x->n_places, sizeof key, by_place);
    }
    if (!p)
        return damaged(x, item->name, "storage_data does not say where it is stored", err);
    transforms = pickle_get(p->info, "transform_descriptors");
    if (pickle_count(transforms) > 0)
        return damaged(x, item->name,
                       "is compressed or otherwise transformed, which is not "
                       "supported",
                       err);
    file = pickle_text(pickle_get(p->info, "relative_path"));
    if (!file || !file_name_is_plain(file))
        return damaged(x, item->name, "is stored outside the folder", err);
    if (x->n == x->most)
        return damaged(x, item->name, "it has more boxes than were counted", err);
    to = &x->items[x->n++];
    *to = *item;
    to->file = arena_strdup(x->arena, file);
    if (!to->file)
        return no_memory(x, err);
    if (!pickle_int(&to->begin, pickle_get(p->info, "offset")) ||
        !pickle_int(&to->size, pickle_get(p->info, "length")) || to->begin < 0 || to->size < 0)
        return damaged(x, item->name, "its position in the file is wrong", err);
    return TP_OK;
}

/* TensorProperties has its dtype as an attribute, or first in the tuple that is its state. */
static enum dtype dtype_of(const struct pickle_value *properties)
{
    const struct pickle_value *v = pickle_get(properties, "dtype");

    if (!v && pickle_is(properties, PICKLE_OBJECT))
        v = pickle_item(properties->object.state, 0);
    return torch_tensor_dtype(v);
}

static tp_status add_tensor(struct dcp_metadata *x, const char *name, const struct pickle_value *v,
                            struct tp_err *err)
{
    const struct pickle_value *chunks = pickle_get(v, "chunks"),
                              *cut = pickle_get(pickle_get(x->megatron, name), DCP_CUT_SHAPE);
    struct dcp_item item = { .name = name, .dtype = dtype_of(pickle_get(v, "properties")) };
    struct box whole;
    tp_status st = TP_OK;

    if (!read_size(&item.ndim, item.shape, pickle_get(v, "size")))
        return damaged(x, name, "its shape is wrong", err);
    if (cut && !read_size(&item.cut_ndim, item.cut_shape, cut))
        return damaged(x, name, "its " DCP_CUT_SHAPE " is wrong", err);
    whole = box_whole(item.ndim, item.shape);
    for (int64_t i = 0; i < pickle_count(chunks) && !st; i++) {
        const struct pickle_value *chunk = pickle_item(chunks, i);
        int n_lo = 0, n_len = 0;

        if (!read_size(&n_lo, item.box.lo, pickle_get(chunk, "offsets")) ||
            !read_size(&n_len, item.box.len, pickle_get(chunk, "sizes")) || n_lo != item.ndim ||
            n_len != item.ndim)
            return damaged(x, name, "the box of a chunk is wrong", err);
        item.box.ndim = item.ndim;
        /* of a tensor without elements one chunk is kept, so that it is not lost */
        if (!box_is_empty(&item.box) || (i == 0 && box_is_empty(&whole)))
            st = add_item(x, &item, err);
    }
    return st;
}

static tp_status add_entry(struct dcp_metadata *x, const char *name, const struct pickle_value *v,
                           struct tp_err *err)
{
    struct dcp_item object = { .name = name, .is_object = true };
    tp_status st;

    if (!name || !*name)
        return damaged(x, NULL, "its name is not text", err);
    name = arena_strdup(x->arena, name); /* that of all its items */
    object.name = name;
    if (!name)
        return no_memory(x, err);
    if (pickle_is_call(v, METADATA, "TensorStorageMetadata"))
        return add_tensor(x, name, v, err);
    if (pickle_is_call(v, METADATA, "BytesStorageMetadata")) {
        st = find_path(&object, x, err);
        return st ? st : add_item(x, &object, err);
    }
    return damaged(x, name, "is neither a tensor nor bytes", err);
}

static tp_status read_root(const struct pickle_value **root, struct dcp_metadata *x,
                           struct tp_err *err)
{
    struct file_part part = { .path = x->path };
    tp_status st = object_open_any(&part.object, &part.size, x->path, err);

    if (st)
        return st;
    st = torch_file_read_pickle(root, &part, &x->values, err);
    object_close(&part.object);
    if (!st && (!pickle_is_call(*root, METADATA, "Metadata") ||
                !pickle_is(pickle_get(*root, "state_dict_metadata"), PICKLE_DICT) ||
                !pickle_is(pickle_get(*root, "storage_data"), PICKLE_DICT)))
        st = tp_fail(err, TP_E_CORRUPT, "%s: is not the metadata of a torch.distributed.checkpoint",
                     x->path);
    return st;
}

/* Make room for all items. There are as many as boxes and objects: a million for a model of a
 * thousand ranks, so the table does not grow to twice its size, nor is it copied. */
static tp_status make_items(struct dcp_metadata *x, const struct pickle_value *entries,
                            struct tp_err *err)
{
    char bytes[SIZE_TEXT_MAX];

    for (int64_t i = 0; i < pickle_entries(entries); i++) {
        const struct pickle_value *v = pickle_entry(entries, i);

        x->most += pickle_is_call(v, METADATA, "TensorStorageMetadata")
                       ? pickle_count(pickle_get(v, "chunks"))
                       : 1;
    }
    if (x->most <= INT_MAX)
        x->items = arena_array(x->arena, (size_t)x->most + 1, sizeof *x->items);
    return x->items ? TP_OK
                    : tp_fail(err, TP_E_NOMEM, "%s: no memory for its %lld entries, which need %s",
                              x->path, (long long)x->most,
                              size_format(bytes, x->most * (int64_t)sizeof *x->items));
}

/* Of the arena's limit, what others have left. */
static size_t limit_beside(size_t limit, size_t others)
{
    return limit == 0 ? 0 : limit > others ? limit - others : 1;
}

tp_status dcp_metadata_read(struct dcp_item **items, int *n, const char *dir, struct arena *arena,
                            struct tp_err *err)
{
    const size_t limit = arena->limit_bytes;
    struct dcp_metadata x = { .arena = arena,
                              .values.limit_bytes = limit_beside(limit, arena->used_bytes) };
    const struct pickle_value *root = NULL, *entries;
    char path[PATH_MAX];
    tp_status st;

    TP_TRY(file_join(path, dir, ".metadata", err));
    x.path = path;
    TP_TRY(read_root(&root, &x, err));
    TP_TRY(read_places(&x, pickle_get(root, "storage_data"), err));
    TP_TRY(read_paths(&x, pickle_get(root, "planner_data"), err));
    x.megatron = pickle_get(root, DCP_CUTS);
    entries = pickle_get(root, "state_dict_metadata");
    arena->limit_bytes = limit_beside(limit, x.values.used_bytes);
    TP_TRY(make_items(&x, entries, err));
    for (int64_t i = 0; i < pickle_entries(entries); i++)
        TP_TRY(add_entry(&x, pickle_text(pickle_key(entries, i)), pickle_entry(entries, i), err));
    *items = x.items;
    *n = (int)x.n;
done:
    arena->limit_bytes = limit;
    arena_free(&x.values);
    return st;
}

static int by_file(const void *a, const void *b)
{
    return strcmp((*(struct dcp_item *const *)a)->file, (*(struct dcp_item *const *)b)->file);
}

tp_status dcp_metadata_add_files(struct dcp_item *items, int n, const char *dir,
                                 struct file_table *files, struct tp_err *err)
{
    struct dcp_item **sorted = calloc((size_t)n + 1, sizeof *sorted);
    char path[PATH_MAX];
    tp_status st = TP_OK;

    if (!sorted)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its list of files", dir);
    for (int i = 0; i < n; i++)
        sorted[i] = &items[i];
    qsort(sorted, (size_t)n, sizeof *sorted, by_file);
    for (int i = 0; i < n; i++) {
        if (i > 0 && strcmp(sorted[i]->file, sorted[i - 1]->file) == 0) {
            sorted[i]->file_number = sorted[i - 1]->file_number;
            continue;
        }
        TP_TRY(file_join(path, dir, sorted[i]->file, err));
        TP_TRY(file_table_add(files, &sorted[i]->file_number, path, err));
    }
done:
    free(sorted);
    return st;
}

bool dcp_metadata_contains(const char *dir, const char *text)
{
    const int64_t length = (int64_t)strlen(text);
    struct tp_err err = { 0 };
    char path[PATH_MAX], window[WINDOW_BYTES];
    int64_t size;
    bool found = false;
    struct object o;

    if (file_join(path, dir, ".metadata", &err) || object_open_any(&o, &size, path, &err))
        return false;
    for (int64_t at = 0; at + length <= size && !found; at += WINDOW_BYTES - length + 1) {
        const int64_t n = size - at < WINDOW_BYTES ? size - at : WINDOW_BYTES;

        if (object_read_at(&o, path, at, window, (size_t)n, &err))
            break;
        found = memmem(window, (size_t)n, text, (size_t)length) != NULL;
    }
    object_close(&o);
    return found;
}
