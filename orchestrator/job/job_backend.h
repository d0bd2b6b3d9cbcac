/*
 * orchestrator/job/job_backend.h - what the job file must know about a backend.
 */
#ifndef ORCHESTRATOR_JOB_JOB_BACKEND_H
#define ORCHESTRATOR_JOB_JOB_BACKEND_H

#include <stdbool.h>
#include <stddef.h>

#include "orchestrator/job/job.h"
#include "orchestrator/job/job_key.h"

struct job_backend {
    const char *name;           /* in the file: `backend: NAME`, and the section `NAME:` */
    const char *help;           /* heading of the section in the example; NULL: it has no keys */
    const struct job_key *keys; /* ends with JOB_KEY_END; their section is `name`; may be NULL */
    size_t options_bytes;       /* size of the struct that the keys set, 0: none */
    bool finds_nodes; /* it finds its nodes itself; the nodes of the job file are not used */
    /* Check the options further. May be NULL. TP_E_USAGE. */
    tp_status (*check)(const struct job *job, struct tp_err *err);
    /* For job_ranks (job_file.h). NULL: the slots of the job file's nodes. */
    int (*ranks)(const struct job *job);
};

#endif
