/*
 * reshard/formats/torch/dcp_metadata.h - the file .metadata of a DCP checkpoint.
 */
#ifndef RESHARD_FORMATS_TORCH_DCP_METADATA_H
#define RESHARD_FORMATS_TORCH_DCP_METADATA_H

#include "core/arena.h"
#include "layout/box.h"
#include "layout/dtype.h"
#include "reshard/formats/pieces/file_table.h"
#include "torch/pickle.h"

/* What Megatron-core adds to .metadata: for tensors that it has cut, the shape they had. */
#define DCP_CUTS      "mcore_data"
#define DCP_CUT_SHAPE "nd_reformulated_orig_global_shape"

/* A stored box of a tensor, or an object. */
struct dcp_item {
    const char *name; /* the fully qualified name */
    bool is_object;   /* bytes, no tensor: dtype, shape and box are not set */
    enum dtype dtype; /* DTYPE_COUNT: not supported */
    int ndim;
    int64_t shape[BOX_NDIM_MAX]; /* of the whole tensor */
    struct box box;
    int cut_ndim; /* > 0: Megatron-core has cut a tensor into a grid of equal parts, and flattened
                     each: the axes before the last one are those of the grid */
    int64_t cut_shape[BOX_NDIM_MAX]; /* of the tensor that was cut */
    const char *file;                /* a plain name */
    int file_number;                 /* in a table of files (dcp_metadata_add_files) */
    int64_t begin, size;
    const void *planner; /* of an object: its path as planner_data records it, pushed by a
                            pickle_writer; NULL: it records none */
    size_t planner_bytes;
};

/* All items of the folder `dir`, in the arena; an item without elements is of a tensor that has
 * none at all. TP_E_CORRUPT: the file is damaged, an item is stored nowhere, or outside the folder.
 */
tp_status dcp_metadata_read(struct dcp_item **items, int *n, const char *dir, struct arena *arena,
                            struct tp_err *err);

/* Whether the .metadata of the folder `dir` contains a text, such as the name of an item: names are
 * plain in the pickle, so it need not be read as one. false: there is no such file. */
bool dcp_metadata_contains(const char *dir, const char *text);

/* Add each file of the items, which lie in the folder `dir`, to a table once. */
tp_status dcp_metadata_add_files(struct dcp_item *items, int n, const char *dir,
                                 struct file_table *files, struct tp_err *err);

/* Separates the words of a path; it is in no name of a tensor. */
#define DCP_BELOW "\x1f"

/* An item of a new checkpoint. */
struct dcp_new_item {
    struct dcp_item item;
    const char *path; /* of its name in the program's state dict: the words "optim", "param_groups",
                         "0", "lr", with DCP_BELOW between them; a number behind "param_groups" is
                         an index of a list; NULL: that of item.planner */
};

/* Write the file `path`; the boxes of a tensor are neighbours in items. */
tp_status dcp_metadata_write(const char *path, const struct dcp_new_item *items, int n,
                             struct tp_err *err);

#endif
