/*
 * reshard/export.h - write a checkpoint's weights in another project's format: what tp-ckpt export
 * does. The folder appears complete or not at all.
 */
#ifndef RESHARD_EXPORT_H
#define RESHARD_EXPORT_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"
#include "core/progress.h"
#include "layout/dtype.h"

struct export_request {
    const char *ckpt;        /* root or step directory */
    int64_t step;            /* -1: the newest complete one */
    const char *format;      /* of reshard/formats/export_format.h */
    const char *out;         /* folder to create */
    const enum dtype *dtype; /* of the weights; NULL: as trained. f32 is taken from the masters
                                where there are any */
    int64_t max_shard_bytes; /* the most bytes of tensors in a file; 0: no limit */
    const char *assets;      /* folder with tokenizer and so on to copy, or NULL */
    int64_t memory_bytes;    /* the most resident memory */
    int threads;
    bool force;                /* replace OUT when it is an export */
    struct progress *progress; /* counts bytes written and receives notes; NULL: none */
};

struct export_report {
    char dir[PATH_MAX]; /* step directory of the source */
    char out[PATH_MAX];
    int64_t step;
    enum dtype dtype; /* of the first tensor */
    int n_tensors, files;
    int64_t bytes_written, peak_bytes;
    int digests_equal; /* tensors whose digest is the same at both ends */
    int casts; /* tensors that were cast, and have the digest of the cast of what was read */
};

/* TP_E_USAGE: this version does not write the format; the message lists those that it writes. */
tp_status export_check_format(const char *format, struct tp_err *err);

/* Export. After a failure nothing has appeared. */
tp_status export_run(struct export_report *report, const struct export_request *request,
                     struct tp_err *err);

#endif
