/*
 * reshard/formats/safetensors/safetensors_index.h - model.safetensors.index.json: the files of a
 * model.
 *
 *     {"metadata": {...}, "weight_map": {"TENSOR": "FILE", ...}}
 */
#ifndef RESHARD_FORMATS_SAFETENSORS_SAFETENSORS_INDEX_H
#define RESHARD_FORMATS_SAFETENSORS_SAFETENSORS_INDEX_H

#include "core/arena.h"
#include "core/err.h"

/* The distinct files that an index names, in ascending order. */
struct safetensors_files {
    const char **names; /* in the arena; without a folder */
    int n;
};

/* Read an index. Besides the names it needs at most 64 MiB, whatever is in the file. TP_E_CORRUPT:
 * it is not such a file, or a name is not plain, so it could lead to another folder. */
tp_status safetensors_index_read(struct safetensors_files *out, const char *path,
                                 struct arena *arena, struct tp_err *err);

#endif
