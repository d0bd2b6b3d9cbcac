/*
 * reshard/import.h - make a checkpoint of what another project saved: a model's weights, and the
 * state of its optimizer where there is one. It is what tp-ckpt import does.
 */
#ifndef RESHARD_IMPORT_H
#define RESHARD_IMPORT_H

#include "core/err.h"
#include "reshard/copy_totals.h"
#include "reshard/import_request.h"

struct import_report {
    struct copy_totals totals;
    const char *name;     /* of the format; a constant */
    const char *format;   /* the same for people */
    int files;            /* shards */
    int64_t stored_bytes; /* of payload in the files, when they are compressed */
    struct unknown_tensors left_out;
};

/* TP_E_USAGE: this version does not read the format. */
tp_status import_check_format(const char *format, struct tp_err *err);

/* Import. TP_E_USAGE: a tensor of the source is not part of the model, or the root has steps of
 * another model. After a failure nothing has appeared. */
tp_status import_run(struct import_report *report, const struct import_request *request,
                     struct tp_err *err);

#endif
