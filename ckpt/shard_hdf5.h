/*
 * ckpt/shard_hdf5.h - the HDF5 side of a shard: groups, datasets, attributes. Inside ckpt/ only.
 */
#ifndef CKPT_SHARD_HDF5_H
#define CKPT_SHARD_HDF5_H

#include "core/err.h"
#include "layout/stored_box.h"

/* Where libhdf5 put things. */
struct shard_places {
    int64_t *payload; /* [n_extents]: byte offset of each extent's elements; the caller's array */
    int64_t index;    /* byte offset of /index */
    int64_t size;     /* of the file */
};

/* Lay out the file fd as if it were empty: a dataset for each extent (all of one rank), and /index
 * of n_rows. Payload and index are allocated and not written. Deterministic: in a file that was
 * laid out before, the same bytes go to the same places. path is for messages. */
tp_status shard_hdf5_create(struct shard_places *places, int fd, const char *path,
                            const struct layout *layout, const struct stored_box *extents,
                            int n_extents, int64_t n_rows, struct tp_err *err);

/* Find /index in a file that shard_hdf5_create has just made (not for files from elsewhere: those
 * are read without libhdf5). */
tp_status shard_hdf5_find_index(int64_t *offset, int64_t *n_rows, int fd, const char *path,
                                struct tp_err *err);

#endif
