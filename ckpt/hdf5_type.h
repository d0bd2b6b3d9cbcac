/*
 * ckpt/hdf5_type.h - HDF5's types of what a shard contains. Inside ckpt/ only. The caller closes
 * the types with H5Tclose.
 */
#ifndef CKPT_HDF5_TYPE_H
#define CKPT_HDF5_TYPE_H

#include <hdf5.h>

#include "layout/dtype.h"

/* The type of elements of a tensor. Negative: there is none, or libhdf5 failed. */
hid_t hdf5_type_of(enum dtype dtype);

/* The type of a row of /index, packed, as chunk_entry_encode writes it and docs/FORMAT.md specifies
 * it. Negative: libhdf5 failed. */
hid_t hdf5_type_of_index(void);

#endif
