/*
 * reshard/formats/torch/dcp_items.h - the items of a new DCP checkpoint: tensors' boxes and
 * objects, each a file of torch.save in the file of a rank. Inside reshard/formats/ only.
 *
 *     TP_TRY(dcp_items_begin(&x, &items, rank, &item, err));
 *     TP_TRY(torch_target_box(&x.., ...));                    what the item holds
 *     TP_TRY(dcp_items_end(&x, &items, err));
 */
#ifndef RESHARD_FORMATS_TORCH_DCP_ITEMS_H
#define RESHARD_FORMATS_TORCH_DCP_ITEMS_H

#include "reshard/formats/torch/dcp_metadata.h"
#include "reshard/formats/torch/torch_target.h"

/* The file of a rank. */
struct dcp_rank_file {
    const char *name; /* NULL: it has none yet */
    int file;
    int64_t end; /* where the next item begins */
};

struct dcp_items {
    struct piece_target *pieces;
    struct arena *arena;         /* of the target */
    const char *folder;          /* of the files in that of the target: "" or "iter_0000100/" */
    struct dcp_rank_file *ranks; /* [n_ranks] */
    struct dcp_new_item *items;
    int n, room;
};

/* No items yet. folder is borrowed. */
tp_status dcp_items_make(struct dcp_items *d, struct piece_target *pieces, const char *folder,
                         int n_ranks, struct tp_err *err);
void dcp_items_free(struct dcp_items *d);

/* An object of this path. */
struct dcp_new_item dcp_items_object(struct dcp_items *d, const char *path);

/* Add item number i once more by another path: a second entry for the same bytes. */
tp_status dcp_items_again(struct dcp_items *d, int i, const char *path, struct tp_err *err);

/* The same as rows of another tensor: from row `row` of `rows` on. */
tp_status dcp_items_again_at(struct dcp_items *d, int i, const char *path, int64_t rows,
                             int64_t row, struct tp_err *err);

/* Add an item, and begin its bytes at the end of the file of `rank`. Its place is filled in here;
 * its name and path are borrowed. After a failure x is free. */
tp_status dcp_items_begin(struct torch_target *x, struct dcp_items *d, int rank,
                          const struct dcp_new_item *item, struct tp_err *err);

/* End the bytes of the item that was begun, and free x. */
tp_status dcp_items_end(struct torch_target *x, struct dcp_items *d, int rank, struct tp_err *err);

/* Bytes of a file of a source. */
struct dcp_items_bytes {
    struct file_table *files;
    int file;
    int64_t begin, size;
};

/* Add an item whose bytes, a file of torch.save, are copied. */
tp_status dcp_items_copy(struct dcp_items *d, int rank, const struct dcp_new_item *item,
                         const struct dcp_items_bytes *from, struct tp_err *err);

/* Order the items by name and place, when all are there: the boxes of a tensor become
 * neighbours. */
void dcp_items_sort(struct dcp_items *d);

/* Write .metadata into the folder `dir`. */
tp_status dcp_items_write(const struct dcp_items *d, const char *dir, struct tp_err *err);

#endif
