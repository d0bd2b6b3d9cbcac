/*
 * reshard/convert.h - tp-reshard where the source or the target has the format of another
 * framework: an import, or an export, at a new layout.
 */
#ifndef RESHARD_CONVERT_H
#define RESHARD_CONVERT_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"
#include "core/progress.h"
#include "layout/dtype.h"
#include "reshard/copy_totals.h"
#include "reshard/export_options.h"
#include "reshard/unknown_tensors.h"

/* The name of the format of checkpoints here. */
#define CONVERT_OWN "tp"

struct convert_request {
    const char *source;      /* folder of another framework, or checkpoint root or step directory */
    const char *from_format; /* NULL: what its files are; CONVERT_OWN: a checkpoint */
    const char *format;      /* to write; NULL: the source's; CONVERT_OWN: a checkpoint */
    const char *rules;       /* as of struct import_request */
    struct unknown_tensors_ignore ignore; /* the same */
    const char *to;          /* spec; axes that it does not name are 1, or as in a checkpoint */
    const char *config;      /* config.json, or a folder that has one; NULL: the source's */
    const char *assets;      /* as of struct export_request; NULL: the source, if it is a folder of
                                another framework */
    const char *out;         /* folder; NULL: SOURCE-SPEC, the whole new layout */
    const char *scratch;     /* as of struct export_request */
    int64_t step;            /* -1: the newest complete one, or as the optimizer says */
    const enum dtype *dtype; /* cast the weights; NULL: no cast */
    bool no_optim;           /* weights only */
    struct export_options options; /* where another framework's format is written */
    int zstd;                      /* level with which a checkpoint is compressed; 0: it is not */
    int64_t memory_bytes;          /* the most resident memory */
    int threads;
    double journal_s;             /* seconds between records of progress; 0: after each tile */
    bool force;                   /* replace what is there when it is the same kind of thing */
    bool dry_run;                 /* plan only, and write nothing to `out` */
    struct progress *progress;    /* counts bytes written; NULL: none */
    struct comm_control *control; /* processes that share the work, with the same request but for
                                     progress; NULL: this one alone */
};

struct convert_report {
    struct copy_totals totals; /* of a dry run: what would be read and written */
    bool dry_run;
    int files; /* with tensors */
    char out[PATH_MAX];
    const char *from, *format; /* names of formats; constants, or the request's */
    double seconds;
    char left_out[UNKNOWN_TENSORS_TEXT]; /* what stays behind; "": nothing */
};

/* Whether a request with these formats (NULL: not given) for this path is a conversion; otherwise
 * it is a reshard of a checkpoint (reshard/reshard.h). */
bool convert_is_meant(const char *path, const char *from_format, const char *format);

/* Whether there may be something to convert or reshard at this path. TP_E_NOTFOUND: a checkpoint is
 * near, and the message says where (foreign_place_check). */
tp_status convert_check_place(const char *path, const char *from_format, struct tp_err *err);

/* After a failure with st: of a URL where there is no checkpoint of tp-train, say that
 * --from-format is needed, and which one where that can be found out. Returns st. */
tp_status convert_explain(tp_status st, const char *path, const char *from_format,
                          struct tp_err *err);

/* Convert. The new folder or step appears complete or not at all. Collective over control: all
 * processes get the same status, and rank 0 the report. TP_E_USAGE: a format is not
 * known or cannot be written, the request does not fit the source, or rules or names to ignore are
 * given for a checkpoint. */
tp_status convert_run(struct convert_report *report, const struct convert_request *request,
                      struct tp_err *err);

#endif
