/*
 * ckpt/tensor_name.h - the names that tensors and groups may have in a checkpoint.
 */
#ifndef CKPT_TENSOR_NAME_H
#define CKPT_TENSOR_NAME_H

#include "core/err.h"
#include "layout/layout.h"

enum { TENSOR_NAME_BYTES_MAX = 1024 };

/* Names and groups become HDF5 links (/GROUP/NAME@PART), so each is 1 to TENSOR_NAME_BYTES_MAX
 * bytes of UTF-8 without '/', '@' and control characters, and not ".". A group is not "index"
 * either. TP_E_USAGE names the tensor and says what is wrong. */
tp_status tensor_name_check(const struct tensor *t, struct tp_err *err);

#endif
