/*
 * ckpt/name.h - which names tensors and groups may have in a checkpoint, and what files and
 * datasets are called after them.
 */
#ifndef CKPT_NAME_H
#define CKPT_NAME_H

#include "core/err.h"
#include "layout/layout.h"

enum { NAME_BYTES_MAX = 1024 };

/* Names and groups become HDF5 links (/GROUP/NAME@PART), so they are 1 .. NAME_BYTES_MAX bytes of
 * UTF-8 without '/', '@' and control characters, and not "."; a group is not "index" either.
 * TP_E_USAGE names the tensor and what is wrong with it. */
tp_status name_check(const struct tensor *t, struct tp_err *err);

#endif
