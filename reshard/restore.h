/*
 * reshard/restore.h - read chosen boxes of a checkpoint, or of a safetensors folder, into memory.
 *
 * This is how a rank resumes: it reads the boxes that it holds, whatever layout wrote them. Each
 * rank reads for itself, so no call here is a collective. Every byte is checked before TP_OK is
 * returned; after a failure the contents of the memory are undefined. With a device the bytes go
 * from the files through a ring of pinned memory (reshard/engine/device_ring.h), whose size does
 * not depend on the tensors, and the device checks, cuts and casts them.
 */
#ifndef RESHARD_RESTORE_H
#define RESHARD_RESTORE_H

#include "ckpt/root.h"
#include "reshard/engine/transfer.h"

/* Which boxes go where. All arrays are borrowed. Tensors are numbered 0 .. n_tensors - 1;
 * extents[i].tensor is such a number. Extents of one tensor may not overlap. */
struct restore_request {
    int n_tensors, n_extents;
    const struct reshard_extent *extents; /* [n_extents] the boxes to read */
    void *const *data;                    /* [n_extents] receives the box, row-major */
    const enum dtype *dtypes; /* [n_tensors] of the data; floating-point types are cast */
    const struct transfer_device *device; /* data is its memory; NULL: host memory. Borrowed */
    int64_t memory_bytes;                 /* of the host, for buffers */
    int threads;                          /* that read; at least 1 */
};

/* Read from a checkpoint step; tensor i is its manifest's tensor ids[i]. stats->bytes_read counts
 * everything that was read from files. */
tp_status restore_checkpoint(const struct restore_request *request, const struct ckpt_found *step,
                             const int *ids, struct transfer_stats *stats, struct tp_err *err);

/* Read from model.safetensors, or its parts, at `path`; tensor i is tensors[i], which must be there
 * with that shape. */
tp_status restore_safetensors(const struct restore_request *request, const char *path,
                              const struct reshard_tensor *tensors, struct transfer_stats *stats,
                              struct tp_err *err);

#endif
