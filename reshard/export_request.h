/*
 * reshard/export_request.h - what an export is asked to do.
 */
#ifndef RESHARD_EXPORT_REQUEST_H
#define RESHARD_EXPORT_REQUEST_H

#include <stdbool.h>
#include <stdint.h>

#include "core/progress.h"
#include "layout/dtype.h"
#include "reshard/export_options.h"
#include "reshard/unknown_tensors.h"

struct comm_control;

struct export_request {
    const char *ckpt;        /* root or step directory; foreign: folder */
    bool foreign;            /* another framework wrote it */
    const char *from_format; /* of a foreign one; NULL: what its files are */
    const char *config;      /* of a foreign one: config.json or a folder with one; NULL: its own */
    const char *rules;       /* of a foreign one: as of struct import_request */
    struct unknown_tensors_ignore ignore; /* of a foreign one: tensors to leave out on purpose */
    int64_t step;        /* -1: the newest complete one; foreign: as the optimizer says */
    const char *layout;  /* spec of the files, for formats that cut tensors; axes that it does
                            not name, or all when NULL, are as in the source, but 1 where the
                            format has only tp; foreign: 1 */
    const char *format;  /* of reshard/formats/export_format.h */
    const char *out;     /* folder to create; or s3://... */
    const char *scratch; /* for a store or a dry run: where headers are made (TMPDIR); NULL: /tmp */
    bool dry_run;        /* plan only, and write nothing to `out` */
    const enum dtype *dtype; /* of the weights; NULL: as trained, but f32 where a format has the
                                optimizer's moments and no masters. f32 is taken from the masters
                                where there are any */
    bool q8_0;               /* GGUF: weights become Q8_0; dtype is f32 then */
    bool no_optim;           /* weights only */
    struct export_options options; /* of the program that is to load it */
    int64_t max_shard_bytes;       /* the most bytes of tensors in a file; 0: no limit */
    const char *assets;            /* folder with tokenizer and so on to copy, or NULL */
    int64_t memory_bytes;          /* the most resident memory */
    int threads;
    double journal_s;             /* seconds between records of progress; 0: after each tile */
    bool force;                   /* replace OUT when it is a model's folder */
    struct progress *progress;    /* counts bytes written and receives notes; NULL: none */
    struct comm_control *control; /* processes that share the work, with the same request but for
                                     progress; NULL: this one alone */
};

#endif
