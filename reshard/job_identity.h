/*
 * reshard/job_identity.h - a hash of what an import or an export does, by which a later run
 * recognizes what an interrupted run of the same job left, and several processes that they do the
 * same. Inside reshard/ only.
 *
 *     TP_TRY(job_identity_new(&h, "import", err));
 *     job_identity_text(h, "layout tp4");
 *     TP_TRY(job_identity_file(h, path, err));
 *     sha256_end(h, identity);
 */
#ifndef RESHARD_JOB_IDENTITY_H
#define RESHARD_JOB_IDENTITY_H

#include <stdint.h>

#include "ckpt/sha256.h"
#include "comm/control.h"
#include "layout/tensor.h"

/* Begin with what is done, and the version of the program. */
tp_status job_identity_new(struct sha256 **h, const char *what, struct tp_err *err);

/* Add a text (NULL: none), and a number. */
void job_identity_text(struct sha256 *h, const char *text);
void job_identity_number(struct sha256 *h, int64_t number);

/* Add the tensors that are written. */
void job_identity_tensors(struct sha256 *h, const struct tensor *tensors, int n);

/* Add a file of the source: path, size and time of the last change. */
tp_status job_identity_file(struct sha256 *h, const char *path, struct tp_err *err);

/* TP_E_USAGE: this process has another identity than rank 0; `source` is for the message.
 * Collective. */
tp_status job_identity_compare(const char identity[SHA256_TEXT], const char *source,
                               struct comm_control *control, struct tp_err *err);

#endif
