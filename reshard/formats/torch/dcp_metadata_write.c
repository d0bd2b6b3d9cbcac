/* reshard/formats/torch/dcp_metadata_write.c - writes .metadata; see
 * reshard/formats/torch/dcp_metadata.h. */
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "reshard/formats/torch/dcp_metadata.h"
#include "torch/pickle_writer.h"
#include "torch/torch_save.h"

#define METADATA "torch.distributed.checkpoint.metadata"

/* Values that the pickle has many times. */
enum dcp_class {
    DCP_TENSOR,
    DCP_BYTES,
    DCP_PROPERTIES,
    DCP_CHUNK,
    DCP_INDEX,
    DCP_STORAGE_INFO,
    DCP_SIZE,
    DCP_STRIDED,
    DCP_CONTIGUOUS,
    DCP_CLASSES,
};

static const char *const class_names[DCP_CLASSES][2] = {
    [DCP_TENSOR] = { METADATA, "TensorStorageMetadata" },
    [DCP_BYTES] = { METADATA, "BytesStorageMetadata" },
    [DCP_PROPERTIES] = { METADATA, "TensorProperties" },
    [DCP_CHUNK] = { METADATA, "ChunkStorageMetadata" },
    [DCP_INDEX] = { METADATA, "MetadataIndex" },
    [DCP_STORAGE_INFO] = { "torch.distributed.checkpoint.filesystem", "_StorageInfo" },
    [DCP_SIZE] = { "torch", "Size" },
    [DCP_STRIDED] = { "torch.serialization", "_get_layout" },
    [DCP_CONTIGUOUS] = { METADATA, "_MEM_FORMAT_ENCODING" },
};

struct dcp_pickle {
    struct pickle_writer w;
    int memo[DCP_CLASSES]; /* plus 1; 0: not written yet */
};

/* Push a class or value; the first time it is written and remembered. */
static void push_class(struct dcp_pickle *p, enum dcp_class c)
{
    struct pickle_writer *w = &p->w;

    if (p->memo[c]) {
        pickle_write_again(w, p->memo[c] - 1);
        return;
    }
    pickle_write_global(w, class_names[c][0], class_names[c][1]);
    if (c == DCP_STRIDED || c == DCP_CONTIGUOUS) { /* the value, which is a call */
        pickle_write_op(w, PICKLE_OP_MARK);
        if (c == DCP_STRIDED)
            pickle_write_text(w, "torch.strided");
        else
            pickle_write_int(w, 0);
        pickle_write_op(w, PICKLE_OP_TUPLE);
        pickle_write_op(w, PICKLE_OP_REDUCE);
    }
    p->memo[c] = pickle_write_remember(w) + 1;
}

/* Push a new object, whose state is the dict that follows; end_object closes it. */
static void begin_object(struct dcp_pickle *p, enum dcp_class c)
{
    push_class(p, c);
    pickle_write_op(&p->w, PICKLE_OP_EMPTY_TUPLE);
    pickle_write_op(&p->w, PICKLE_OP_NEWOBJ);
    pickle_write_dict(&p->w);
}

static void end_object(struct dcp_pickle *p)
{
    pickle_write_op(&p->w, PICKLE_OP_SETITEMS);
    pickle_write_op(&p->w, PICKLE_OP_BUILD);
}

/* Push a torch.Size. */
static void push_size(struct dcp_pickle *p, const int64_t *v, int n)
{
    push_class(p, DCP_SIZE);
    pickle_write_op(&p->w, PICKLE_OP_MARK);
    pickle_write_ints(&p->w, v, n);
    pickle_write_op(&p->w, PICKLE_OP_TUPLE);
    pickle_write_op(&p->w, PICKLE_OP_REDUCE);
}

static void push_properties(struct dcp_pickle *p, enum dtype dtype)
{
    struct pickle_writer *w = &p->w;

    push_class(p, DCP_PROPERTIES);
    pickle_write_op(w, PICKLE_OP_EMPTY_TUPLE);
    pickle_write_op(w, PICKLE_OP_NEWOBJ);
    pickle_write_op(w, PICKLE_OP_MARK);
    pickle_write_global(w, "torch", torch_save_dtype(dtype));
    push_class(p, DCP_STRIDED);
    pickle_write_op(w, PICKLE_OP_FALSE); /* requires_grad */
    push_class(p, DCP_CONTIGUOUS);
    pickle_write_op(w, PICKLE_OP_FALSE); /* pin_memory */
    pickle_write_op(w, PICKLE_OP_TUPLE);
    pickle_write_op(w, PICKLE_OP_BUILD);
}

/* The entry of a tensor whose boxes are items[0 .. n - 1]. */
static void push_tensor(struct dcp_pickle *p, const struct dcp_new_item *items, int n)
{
    struct pickle_writer *w = &p->w;

    begin_object(p, DCP_TENSOR);
    pickle_write_text(w, "properties");
    push_properties(p, items->item.dtype);
    pickle_write_text(w, "size");
    push_size(p, items->item.shape, items->item.ndim);
    pickle_write_text(w, "chunks");
    pickle_write_list(w);
    for (int i = 0; i < n; i++) {
        begin_object(p, DCP_CHUNK);
        pickle_write_text(w, "offsets");
        push_size(p, items[i].item.box.lo, items->item.ndim);
        pickle_write_text(w, "sizes");
        push_size(p, items[i].item.box.len, items->item.ndim);
        end_object(p);
    }
    pickle_write_op(w, PICKLE_OP_APPENDS);
    end_object(p);
}

/* The items of items[i]'s name, from i on. */
static int count_boxes(const struct dcp_new_item *items, int i, int n)
{
    int end = i + 1;

    while (end < n && strcmp(items[end].item.name, items[i].item.name) == 0)
        end++;
    return end - i;
}

static void push_state(struct dcp_pickle *p, const struct dcp_new_item *items, int n)
{
    struct pickle_writer *w = &p->w;

    pickle_write_text(w, "state_dict_metadata");
    pickle_write_dict(w);
    for (int i = 0, boxes; i < n; i += boxes) {
        boxes = count_boxes(items, i, n);
        pickle_write_text(w, items[i].item.name);
        if (items[i].item.is_object) {
            begin_object(p, DCP_BYTES);
            end_object(p);
        } else {
            push_tensor(p, items + i, boxes);
        }
    }
    pickle_write_op(w, PICKLE_OP_SETITEMS);
}

static bool has_cuts(const struct dcp_new_item *items, int n)
{
    for (int i = 0; i < n; i++)
        if (items[i].item.cut_ndim > 0)
            return true;
    return false;
}

/* The shapes that tensors had before Megatron-core's cut. */
static void push_cuts(struct dcp_pickle *p, const struct dcp_new_item *items, int n)
{
    struct pickle_writer *w = &p->w;

    pickle_write_text(w, DCP_CUTS);
    pickle_write_dict(w);
    for (int i = 0; i < n; i += count_boxes(items, i, n)) {
        if (items[i].item.is_object)
            continue;
        pickle_write_text(w, items[i].item.name);
        pickle_write_dict(w);
        if (items[i].item.cut_ndim > 0) {
            pickle_write_text(w, DCP_CUT_SHAPE);
            pickle_write_ints(w, items[i].item.cut_shape, items[i].item.cut_ndim);
        }
        pickle_write_op(w, PICKLE_OP_SETITEMS);
    }
    pickle_write_op(w, PICKLE_OP_SETITEMS);
}

/* A path as a tuple of words, and of the numbers of groups. A parameter may have a number as its
 * name, which stays a text. */
static void push_path(struct dcp_pickle *p, const char *path)
{
    struct pickle_writer *w = &p->w;
    char *copy = strdup(path), *save = NULL;
    bool numbered = false;

    w->failed |= !copy;
    pickle_write_op(w, PICKLE_OP_MARK);
    for (char *word = copy ? strtok_r(copy, DCP_BELOW, &save) : NULL; word;
         word = strtok_r(NULL, DCP_BELOW, &save)) {
        if (numbered && strspn(word, "0123456789") == strlen(word))
            pickle_write_int(w, strtoll(word, NULL, 10));
        else
            pickle_write_text(w, word);
        numbered = strcmp(word, "param_groups") == 0;
    }
    pickle_write_op(w, PICKLE_OP_TUPLE);
    free(copy);
}

static void push_planner(struct dcp_pickle *p, const struct dcp_new_item *items, int n)
{
    struct pickle_writer *w = &p->w;

    pickle_write_text(w, "planner_data");
    pickle_write_dict(w);
    for (int i = 0; i < n; i += count_boxes(items, i, n))
        if (items[i].path) {
            pickle_write_text(w, items[i].item.name);
            push_path(p, items[i].path);
        } else if (items[i].item.planner) {
            pickle_write_text(w, items[i].item.name);
            pickle_write_pushed(w, items[i].item.planner, items[i].item.planner_bytes);
        }
    pickle_write_op(w, PICKLE_OP_SETITEMS);
}

/* Where an item is: number `index` of its tensor's boxes. */
static void push_place(struct dcp_pickle *p, const struct dcp_item *item, int index)
{
    struct pickle_writer *w = &p->w;

    begin_object(p, DCP_INDEX);
    pickle_write_text(w, "fqn");
    pickle_write_text(w, item->name);
    pickle_write_text(w, "offset");
    if (item->is_object)
        pickle_write_op(w, PICKLE_OP_NONE);
    else
        push_size(p, item->box.lo, item->ndim);
    pickle_write_text(w, "index");
    if (item->is_object)
        pickle_write_op(w, PICKLE_OP_NONE);
    else
        pickle_write_int(w, index);
    end_object(p);
    begin_object(p, DCP_STORAGE_INFO);
    pickle_write_text(w, "relative_path");
    pickle_write_text(w, item->file);
    pickle_write_text(w, "offset");
    pickle_write_int(w, item->begin);
    pickle_write_text(w, "length");
    pickle_write_int(w, item->size);
    end_object(p);
}

static void push_storage(struct dcp_pickle *p, const struct dcp_new_item *items, int n)
{
    struct pickle_writer *w = &p->w;
    int index = 0;

    pickle_write_text(w, "storage_data");
    pickle_write_dict(w);
    for (int i = 0; i < n; i++) {
        index = i > 0 && strcmp(items[i - 1].item.name, items[i].item.name) == 0 ? index + 1 : 0;
        push_place(p, &items[i].item, index);
    }
    pickle_write_op(w, PICKLE_OP_SETITEMS);
}

tp_status dcp_metadata_write(const char *path, const struct dcp_new_item *items, int n,
                             struct tp_err *err)
{
    struct dcp_pickle p = { .memo = { 0 } };
    struct pickle_writer *w = &p.w;
    tp_status st;

    pickle_write_begin(w);
    pickle_write_global(w, METADATA, "Metadata");
    pickle_write_op(w, PICKLE_OP_EMPTY_TUPLE);
    pickle_write_op(w, PICKLE_OP_NEWOBJ);
    pickle_write_dict(w);
    push_state(&p, items, n);
    push_planner(&p, items, n);
    push_storage(&p, items, n);
    if (has_cuts(items, n))
        push_cuts(&p, items, n);
    pickle_write_op(w, PICKLE_OP_SETITEMS);
    pickle_write_op(w, PICKLE_OP_BUILD);
    pickle_write_op(w, PICKLE_OP_STOP);
    st = w->failed ? tp_fail(err, TP_E_NOMEM, "%s: no memory for its entries", path)
                   : file_write_new(path, w->data, w->n, err);
    pickle_writer_free(w);
    return st;
}
