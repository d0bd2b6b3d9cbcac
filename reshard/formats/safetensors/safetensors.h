/*
 * reshard/formats/safetensors/safetensors.h - safetensors files, one or several with an index, as
 * endpoints. The format: github.com/huggingface/safetensors, with the limits that its readers have.
 */
#ifndef RESHARD_FORMATS_SAFETENSORS_SAFETENSORS_H
#define RESHARD_FORMATS_SAFETENSORS_SAFETENSORS_H

#include "reshard/engine/endpoint.h"
#include "reshard/formats/pieces/piece_target.h"

struct safetensors_tensor {
    const char *name;
    enum dtype dtype;
    int ndim;
    int64_t shape[BOX_NDIM_MAX];
};

/* ---- source ---- */

struct safetensors_source;

/* Open a folder (model.safetensors, or model.safetensors.index.json and its parts) or one file.
 * TP_E_CORRUPT: a header has holes, overlaps, duplicates or offsets outside the file.
 * TP_E_NOTFOUND: there is no such path, or nothing of this format in it. */
tp_status safetensors_open(struct safetensors_source **out, const char *path, struct tp_err *err);

/* Before anything else: weights in FP8 or MXFP4 that have scales (quantized.h) are from now on
 * tensors in bf16, and their scales are none. *n: how many; or NULL. TP_E_CORRUPT: scales do not
 * divide their weight, or have a type that is not supported. */
tp_status safetensors_dequantize(struct safetensors_source *s, int *n, struct tp_err *err);

enum { DEQUANTIZED_NOTE_MAX = 128 };

/* What to tell people when n is above 0. Return note. */
const char *safetensors_dequantized_note(char note[DEQUANTIZED_NOTE_MAX], int n);

/* All tensors of the files, ascending by name. */
int safetensors_count(const struct safetensors_source *s);
const char *safetensors_name(const struct safetensors_source *s, int i);
const struct safetensors_tensor *safetensors_tensor_at(const struct safetensors_source *s, int i);
const char *safetensors_path(const struct safetensors_source *s);

/* The files, and where tensor i is: the number of its file, and the byte at which it begins. Paths
 * are borrowed. */
int safetensors_files(const struct safetensors_source *s);
const char *safetensors_file(const struct safetensors_source *s, int file);
int safetensors_place(const struct safetensors_source *s, int i, int64_t *begin);

/* How tensor i is stored, if it was dequantized; else NULL. */
struct quantized;
const struct quantized *safetensors_quantized(const struct safetensors_source *s, int i);

/* Choose the tensors of the transfer. TP_E_CORRUPT: one is missing or has another shape; the
 * message names it and both shapes. */
tp_status safetensors_select(struct safetensors_source *s, const struct reshard_tensor *tensors,
                             int n_tensors, struct tp_err *err);

/* Its digests are of what was read so far, because the files have no checksums. */
const struct reshard_endpoint *safetensors_source_endpoint(const struct safetensors_source *s);
void safetensors_source_close(struct safetensors_source *s);

/* ---- target ---- */

/* Create the files in dir, which exists: model.safetensors, or model-0000i-of-0000n.safetensors and
 * model.safetensors.index.json when the tensors need more than max_shard_bytes (0: never). Tensor i
 * of the transfer is tensors[i], whole; dir and tensors are borrowed. The metadata is
 * {"format": "pt"}. */
tp_status safetensors_create(struct piece_target **out, const char *dir,
                             const struct tensor *tensors, int n, int64_t max_shard_bytes,
                             struct tp_err *err);

/* Add such files to a target that has other tensors, too: of its tensors those with the n numbers
 * ids, which ascend; NULL: the first n. It is planned by the caller. */
tp_status safetensors_add_files(struct piece_target *t, const char *dir,
                                const struct tensor *tensors, const int *ids, int n,
                                int64_t max_shard_bytes, struct tp_err *err);

/* Begin one file of a target with these n tensors, in this order: write its header, and set its
 * length. The data of tensors[i], which the caller places, begin at byte begins[i]. */
tp_status safetensors_begin_file(struct piece_target *t, int file,
                                 const struct safetensors_tensor *tensors, int n, int64_t *begins,
                                 struct tp_err *err);

/* The same as a row of reshard/formats/export_format.h. */
tp_status safetensors_export_create(struct export_writer *w, const struct export_contents *q,
                                    struct tp_err *err);

/* ---- one small file ---- */

/* Write a file at once and atomically (rename). tensors[i] has the row-major data[i]. */
tp_status safetensors_write_file(const char *path, const struct safetensors_tensor *tensors,
                                 const void *const *data, int n, struct tp_err *err);

#endif
