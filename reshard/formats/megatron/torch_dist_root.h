/*
 * reshard/formats/megatron/torch_dist_root.h - the common state of a torch_dist checkpoint that is
 * read, with the arguments of the program: those of Megatron-LM are in it, and those of
 * Megatron-Bridge and NeMo beside it (bridge_args.h). It is common.pt, and since Megatron-core 0.19
 * an object among the tensors. A fsdp_dtensor checkpoint, which has no metadata.json, has many
 * objects instead (fsdp_dtensor_root.h).
 */
#ifndef RESHARD_FORMATS_MEGATRON_TORCH_DIST_ROOT_H
#define RESHARD_FORMATS_MEGATRON_TORCH_DIST_ROOT_H

#include <limits.h>

#include "reshard/formats/megatron/bridge_args.h"
#include "reshard/formats/torch/torch_pieces.h"

struct torch_dist_root {
    struct torch_pieces x;           /* its source is set by the caller */
    const struct pickle_value *root; /* with "args", if there are any */
    struct bridge_args bridge;
    char path[PATH_MAX]; /* of the file with the arguments */
};

/* Open it in the folder `dir`; `rows` as in bridge_args_read. Close r->x also after a failure. */
tp_status torch_dist_root_open(struct torch_dist_root *r, const char *dir, int64_t rows,
                               struct tp_err *err);

/* Whether the object of .metadata with this name is the common state. */
bool torch_dist_root_is(const char *name);

/* As foreign_format's config: make a config.json of the arguments in common.pt, or of what Bridge
 * and NeMo have instead (megatron_config.h). */
tp_status torch_dist_root_config(const char **text, const char **note, struct piece_source *s,
                                 struct tp_err *err);

#endif
