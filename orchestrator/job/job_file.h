/*
 * orchestrator/job/job_file.h - reads a job file, and writes the commented example.
 *
 * Paths in the file are relative to the file's own folder, which is also where the command runs.
 */
#ifndef ORCHESTRATOR_JOB_JOB_FILE_H
#define ORCHESTRATOR_JOB_JOB_FILE_H

#include <stdio.h>

#include "orchestrator/job/job_backend.h"

enum { JOB_FILE_MAX = 1 << 20 };

/* Read and check a job file. Everything lives in the arena. backends: those that the file may
 * name; NULL after the last.
 * TP_E_NOTFOUND, TP_E_USAGE: the sentence names file and line, the key, and what was expected. */
tp_status job_file_read(struct job *out, const char *path,
                        const struct job_backend *const *backends, struct arena *arena,
                        struct tp_err *err);

/* The same from text; `path` gives the folder and is used in messages. */
tp_status job_file_parse(struct job *out, const char *text, size_t size, const char *path,
                         const struct job_backend *const *backends, struct arena *arena,
                         struct tp_err *err);

/* Write a commented job file with every key and its default. */
void job_file_example(FILE *f, const struct job_backend *const *backends);

/* The number of ranks that the job can have without failures: on the job file's nodes, or on the
 * nodes that the backend will request. */
int job_ranks(const struct job *j);

#endif
