/*
 * ckpt/shard_hdf5.h - the HDF5 structure of a shard: groups, datasets, attributes. Inside ckpt/
 * only.
 */
#ifndef CKPT_SHARD_HDF5_H
#define CKPT_SHARD_HDF5_H

#include "ckpt/chunk.h"
#include "core/err.h"
#include "layout/stored_box.h"

struct shard_structure {
    const struct layout *layout;
    const struct stored_box *boxes; /* all of one rank; each becomes a dataset */
    int n_boxes;
    int64_t index_rows; /* of /index */

    /* For a file that has its payload already, from SHARD_PAYLOAD_BEGIN on to payload_end: the
     * datasets are chunked and have the filters shuffle and zstd, and their chunks are where these
     * entries say. NULL: datasets are contiguous, and their payload is allocated. */
    const struct chunk_entry *chunks;
    const int64_t *first_chunk; /* [n_boxes + 1] number of the first chunk of each box */
    int64_t payload_end;
};

/* The superblock and the first block of structure are before the payload. */
enum { SHARD_PAYLOAD_BEGIN = 4096 };

/* Byte offsets that libhdf5 chose. */
struct shard_offsets {
    int64_t *payload; /* [n_boxes] of each box's elements; the array is the caller's. Not used when
                         there are chunks */
    int64_t index;    /* of /index */
    int64_t size;     /* of the file */
};

/* Create the structure in the file fd as if the file were empty. Payload and /index are allocated,
 * but not written. Deterministic: in a file that already has this structure, the same bytes are
 * written to the same offsets. path is for messages. */
tp_status shard_hdf5_create(struct shard_offsets *offsets, int fd, const char *path,
                            const struct shard_structure *structure, struct tp_err *err);

/* Find /index in a file that shard_hdf5_create has just made. Not for other files: those are read
 * without libhdf5. */
tp_status shard_hdf5_find_index(int64_t *offset, int64_t *n_rows, int fd, const char *path,
                                struct tp_err *err);

#endif
