/*
 * cli/run/run_context.h - what the verbs of tp-run need in addition to their options: the job, its
 * backend, this program's path and environment, and requests to the tp-run that runs the job.
 */
#ifndef CLI_RUN_RUN_CONTEXT_H
#define CLI_RUN_RUN_CONTEXT_H

#include <jansson.h>
#include <limits.h>
#include <stdbool.h>

#include "core/arena.h"
#include "core/err.h"
#include "orchestrator/backend/backend.h"

struct run_context {
    struct arena arena;
    struct environment env; /* this program's */
    char self[PATH_MAX];    /* path of this program */
    struct job job;
    const struct backend *backend; /* the job's */
};

/* Read the job file. TP_E_NOTFOUND; TP_E_USAGE: it is wrong, or its state folder belongs to another
 * job file (orchestrator/state/state_owner.h). Close it in any case. */
tp_status run_context_open(struct run_context *c, const char *path, struct tp_err *err);

/* The same for verbs that need only the state folder, because a job file can be damaged or removed
 * while its job runs. If the file cannot be read, or `path` is the state folder itself, the job has
 * only its path, name, state and backend, and the other fields have their defaults. A warning says
 * so. Without a journal in that folder the result is as of run_context_open. */
tp_status run_context_open_state(struct run_context *c, const char *path, struct tp_err *err);
void run_context_close(struct run_context *c);

/* For the backend's functions. */
struct backend_call run_context_call(const struct run_context *c);

/* Send a request to the tp-run that runs the job. Takes over the request; the caller decrefs
 * *answer. If tp-run is on another host, the backend starts `tp-run ask` there. If tp-run refuses,
 * err has its sentence. TP_E_NOTFOUND: no tp-run runs the job. */
tp_status run_context_ask(json_t **answer, struct run_context *c, json_t *request,
                          struct tp_err *err);

/* The same with the path of the job file. */
tp_status run_context_ask_once(json_t **answer, const char *path, json_t *request,
                               struct tp_err *err);

/* Ask for the job's status, ten times a second, until done returns true for it. TP_E_NOTFOUND: the
 * job has ended. A tp-run that ends may not answer; ten requests in turn without an answer are
 * TP_E_IO. */
tp_status run_context_wait(struct run_context *c, bool (*done)(void *ctx, const json_t *status),
                           void *ctx, struct tp_err *err);

/* Print the sentence of the answer, or the whole answer as a line of JSON. */
void run_context_print(const json_t *answer, bool as_json);

#endif
