/*
 * reshard/import.h - make a checkpoint of a model's weights in another project's format: what
 * tp-ckpt import does.
 */
#ifndef RESHARD_IMPORT_H
#define RESHARD_IMPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"
#include "core/progress.h"
#include "layout/dtype.h"
#include "layout/spec.h"
#include "reshard/unknown_tensors.h"

struct import_request {
    const char *source; /* folder with config.json and model.safetensors or its parts */
    const char *format; /* "auto" or "safetensors" */
    const char *layout; /* spec */
    const char *out;    /* checkpoint root; step 0 is added to it */
    struct unknown_tensors_ignore ignore; /* tensors to leave out on purpose */
    const enum dtype *dtype;              /* cast the weights; NULL: no cast */
    int64_t memory_bytes;                 /* the most resident memory */
    int threads;
    bool force;                /* replace step 0 when it exists */
    struct progress *progress; /* counts bytes written; NULL: none */
};

struct import_report {
    struct spec spec;
    int n_tensors, boxes;
    int64_t bytes_written, peak_bytes;
    struct unknown_tensors left_out;
    int digests_equal; /* tensors whose digest is the same at both ends */
    int casts; /* tensors that were cast, and have the digest of the cast of what was read */
};

/* TP_E_USAGE: this version does not read the format. */
tp_status import_check_format(const char *format, struct tp_err *err);

/* Import. TP_E_USAGE: a tensor of the source is no part of the model, or the root has steps of
 * another model. After a failure nothing has appeared. */
tp_status import_run(struct import_report *report, const struct import_request *request,
                     struct tp_err *err);

#endif
