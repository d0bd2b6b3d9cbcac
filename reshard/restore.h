/*
 * reshard/restore.h - read chosen boxes of a checkpoint, or of a safetensors folder, into memory:
 * how a rank resumes at any layout, whatever layout wrote the checkpoint.
 *
 * Engine tensors are numbered 0 .. n - 1; regions[i].tensor is such a number, data[i] gets
 * regions[i].box row-major as dtypes[regions[i].tensor] (floating-point types are cast). Regions of
 * one tensor may not overlap. Every byte is checked before TP_OK is returned; on failure data holds
 * rubbish. memory_bytes bounds the buffers of this call, jobs the threads. No collective is called,
 * so every rank of a job restores its own part by itself.
 */
#ifndef RESHARD_RESTORE_H
#define RESHARD_RESTORE_H

#include "ckpt/manifest.h"
#include "reshard/engine.h"

/* From the checkpoint step in `dir` whose manifest is m; tensor i is ids[i] in the manifest.
 * stats->bytes_read counts all that was read from files. */
tp_status restore_boxes(const char *dir, const struct manifest *m, const int *ids, int n,
                        const struct reshard_extent *regions, void *const *data,
                        const enum dtype *dtypes, int n_regions, int64_t memory_bytes, int jobs,
                        struct move_stats *stats, struct tp_err *err);

/* From model.safetensors (or its parts) at `path`: tensor i is tensors[i], which must be there with
 * that shape. */
tp_status restore_safetensors(const char *path, const struct move_tensor *tensors, int n,
                              const struct reshard_extent *regions, void *const *data,
                              const enum dtype *dtypes, int n_regions, int64_t memory_bytes,
                              int jobs, struct move_stats *stats, struct tp_err *err);

#endif
