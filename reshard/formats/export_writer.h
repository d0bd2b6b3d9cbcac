/*
 * reshard/formats/export_writer.h - what a format that can be written gets and returns
 * (reshard/formats/export_format.h).
 */
#ifndef RESHARD_FORMATS_EXPORT_WRITER_H
#define RESHARD_FORMATS_EXPORT_WRITER_H

#include "layout/model.h"
#include "layout/tensor.h"
#include "reshard/engine/endpoint.h"

/* What is written. */
struct export_contents {
    const char *dir; /* exists, and is empty */
    const struct model *model;
    const struct tensor *tensors; /* as they are to be written: group, name, type, shape */
    int n;
    int64_t step;            /* of the optimizer */
    int64_t max_shard_bytes; /* the most bytes of tensors in a file; 0: no limit */
};

/* A folder that is being written. */
struct export_writer {
    const struct reshard_endpoint *endpoint; /* tensor i is tensors[i]; valid until close */
    int files;                               /* with tensors */
    void *ctx;                               /* of the format */
};

#endif
