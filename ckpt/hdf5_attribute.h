/*
 * ckpt/hdf5_attribute.h - attributes of an HDF5 file, group or dataset, for people who use h5py; no
 * program here reads them. Inside ckpt/ only. Each function returns false if libhdf5 failed.
 */
#ifndef CKPT_HDF5_ATTRIBUTE_H
#define CKPT_HDF5_ATTRIBUTE_H

#include <hdf5.h>
#include <stdbool.h>
#include <stdint.h>

/* n integers, as an array also when n is 1. */
bool hdf5_attribute_ints(hid_t where, const char *name, const int64_t *values, int n);

/* One integer, as a scalar. */
bool hdf5_attribute_int(hid_t where, const char *name, int64_t value);

/* A text of UTF-8, which must not be empty. */
bool hdf5_attribute_text(hid_t where, const char *name, const char *text);

#endif
