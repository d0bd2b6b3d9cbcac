/*
 * reshard/export_job.h - what an export does wherever it writes: inside reshard/ only. export.c
 * writes to a store, export_folder.c to a folder, and export_shared.c to a folder by several
 * processes.
 */
#ifndef RESHARD_EXPORT_JOB_H
#define RESHARD_EXPORT_JOB_H

#include <limits.h>

#include "reshard/atomic_folder.h"
#include "reshard/copy_job.h"
#include "reshard/export_source.h"
#include "reshard/export_store.h"
#include "reshard/resume.h"

#define EXPORT_JOB_CONFIG "config.json"

struct export_job {
    const struct export_request *request;
    struct arena arena;
    const struct export_format *format;
    struct export_source source;
    struct export_writer writer; /* open while it has an endpoint */
    struct atomic_folder folder; /* of a local export */
    struct export_store store;   /* of one to a store */
    char scratch[PATH_MAX];      /* of a dry run; "": none */
    struct copy_job copy;
    int64_t remote_bytes; /* resident later for a source that is not local */
    struct resume resume;
    struct comm_control *control; /* NULL: this process alone */
};

/* Whether it is rank 0 of several processes, or the only one. */
bool export_job_is_root(const struct export_job *x);

struct resume_job export_job_resume(struct export_job *x);

bool export_job_to_store(const struct export_job *x);

/* --force must not replace what is read: an output has the tensors, and not all other files of its
 * source. TP_E_USAGE: it would. */
tp_status export_job_check_source(const struct export_request *q, struct tp_err *err);

/* SHA-256 of what this export does, in x->resume: by it a later run knows its journal, and several
 * processes that they do the same. */
tp_status export_job_identify(struct export_job *x, struct tp_err *err);

/* What is written to `dir`, which exists. */
struct export_contents export_job_contents(const struct export_job *x, const char *dir);

/* Create the files, and close what was created. */
tp_status export_job_create(struct export_job *x, const char *dir, struct tp_err *err);
void export_job_close_writer(struct export_job *x);

/* Plan the copy, when the writer is open. */
tp_status export_job_plan(struct export_job *x, struct tp_err *err);

/* Copy the tensors, prove, and finish the files. */
tp_status export_job_copy(struct export_job *x, struct tp_err *err);

/* Write what is beside the tensors: config.json, the tokenizer. */
tp_status export_job_write_small_files(struct export_job *x, struct tp_err *err);

#endif
