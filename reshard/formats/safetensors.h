/*
 * reshard/formats/safetensors.h - safetensors files, one or many with an index, as source and
 * target. Format: github.com/huggingface/safetensors, with the limits its readers have.
 */
#ifndef RESHARD_FORMATS_SAFETENSORS_H
#define RESHARD_FORMATS_SAFETENSORS_H

#include "ckpt/digest.h"
#include "core/arena.h"
#include "reshard/engine/transfer.h"

struct safetensors_tensor {
    const char *name;
    enum dtype dtype;
    int ndim;
    int64_t shape[BOX_NDIM_MAX];
};

/* ---- reading ---- */

struct safetensors_source;

/* A folder (model.safetensors, or model.safetensors.index.json and its parts) or one file. Headers
 * are checked: no holes, overlaps, duplicates, or offsets outside the file. TP_E_CORRUPT,
 * TP_E_NOTFOUND. */
tp_status safetensors_open(struct safetensors_source **out, const char *path, struct tp_err *err);

/* Engine tensors are `names`; each must be there with this shape, else TP_E_CORRUPT names it and
 * both shapes. */
tp_status safetensors_select(struct safetensors_source *s, const struct reshard_tensor *tensors,
                             int n_tensors, struct tp_err *err);
const struct reshard_endpoint *safetensors_source_endpoint(const struct safetensors_source *s);

/* What was read of an engine tensor so far: these files have no checksums of their own, but what is
 * written elsewhere can be compared. */
struct digest safetensors_source_digest(const struct safetensors_source *s, int tensor);
void safetensors_source_close(struct safetensors_source *s);

/* ---- writing ---- */

struct safetensors_target;

/* Create file(s) in dir, which exists: model.safetensors, or model-0000i-of-0000n.safetensors and
 * model.safetensors.index.json when the tensors need more than max_shard_bytes (0: never). Engine
 * tensor i is tensors[i], whole. metadata {"format": "pt"}. */
tp_status safetensors_create(struct safetensors_target **out, const char *dir,
                             const struct safetensors_tensor *tensors, int n_tensors,
                             int64_t max_shard_bytes, struct tp_err *err);
const struct reshard_endpoint *safetensors_target_endpoint(const struct safetensors_target *t);

/* What was written of an engine tensor so far. */
struct digest safetensors_target_digest(const struct safetensors_target *t, int tensor);

/* Number of files of tensors. */
int safetensors_target_files(const struct safetensors_target *t);

/* fsync and close the files, write the index. */
tp_status safetensors_finish(struct safetensors_target *t, struct tp_err *err);
void safetensors_target_close(struct safetensors_target *t);

/* One small file at once: for --logits. tensors[i] has data[i], row-major. Atomic (rename). */
tp_status safetensors_write_file(const char *path, const struct safetensors_tensor *tensors,
                                 const void *const *data, int n, struct tp_err *err);

#endif
