/*
 * reshard/export.h - write a checkpoint in the format of another framework: what tp-ckpt export
 * does, and tp-reshard for the checkpoints of other frameworks. The folder appears complete or not
 * at all.
 */
#ifndef RESHARD_EXPORT_H
#define RESHARD_EXPORT_H

#include <limits.h>

#include "core/err.h"
#include "layout/dtype.h"
#include "reshard/copy_totals.h"
#include "reshard/export_request.h"
#include "reshard/unknown_tensors.h"

struct export_report {
    struct copy_totals totals;
    char dir[PATH_MAX];                  /* step directory of the source, or its folder */
    const char *format;                  /* of the request */
    const char *from;                    /* of a foreign source, for people; a constant */
    char left_out[UNKNOWN_TENSORS_TEXT]; /* what was not written; "": nothing */
    char out[PATH_MAX];
    enum dtype dtype; /* of the first tensor */
    int files;
};

/* Export. After a failure nothing has appeared. */
tp_status export_run(struct export_report *report, const struct export_request *request,
                     struct tp_err *err);

#endif
