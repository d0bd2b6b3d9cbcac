/*
 * reshard/import_request.h - what an import is asked to do.
 */
#ifndef RESHARD_IMPORT_REQUEST_H
#define RESHARD_IMPORT_REQUEST_H

#include <stdbool.h>
#include <stdint.h>

#include "core/progress.h"
#include "layout/dtype.h"
#include "reshard/unknown_tensors.h"

struct comm_control;

struct import_request {
    const char *source; /* folder */
    const char *format; /* of reshard/formats/foreign.h, or "auto" */
    const char *config; /* config.json, or a folder that has one; NULL: the source's */
    const char *layout; /* spec */
    const char *out;    /* checkpoint root; a step is added to it: the optimizer's, else 0 */
    int64_t step;       /* of the run; -1: the optimizer's, else 0 */
    bool no_optim;      /* weights only */
    bool lists_state;   /* with no_optim: people did not ask for it, so list what stays behind */
    bool own_masters;   /* weights are to be their own masters: f32 where there are moments, if
                           dtype is NULL */
    bool keeps_extras;  /* the target gets the source's extras (piece.h) */
    bool keeps_adamw;   /* it gets AdamW's options */
    const char *rules;  /* how tensors are cut (layout/cut_rules.h); NULL: by the model's family */
    struct unknown_tensors_ignore ignore; /* tensors to leave out on purpose */
    const enum dtype *dtype;              /* cast the weights; NULL: no cast */
    int zstd;                             /* level of compression; 0: none */
    int64_t memory_bytes;                 /* the most resident memory */
    int threads;
    double journal_s;             /* seconds between records of progress; 0: after each tile */
    bool force;                   /* replace the step when it exists */
    bool dry_run;                 /* plan only, and write nothing */
    struct progress *progress;    /* counts bytes written; NULL: none */
    struct comm_control *control; /* processes that share the work, with the same request but for
                                     progress; NULL: this one alone */
};

#endif
