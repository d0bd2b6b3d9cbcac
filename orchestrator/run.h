/*
 * orchestrator/run.h - runs a job to its end and restarts it when necessary.
 */
#ifndef ORCHESTRATOR_RUN_H
#define ORCHESTRATOR_RUN_H

#include <jansson.h>

#include "core/err.h"
#include "orchestrator/backend/backend.h"
#include "orchestrator/job/job.h"

/* How run_job reports to people; each function may be NULL. */
struct run_reporter {
    void (*event)(void *ctx, const json_t *event); /* as in events.jsonl */
    void (*line)(void *ctx, const char *text);     /* the live line, at most twice a second */
    void (*note)(void *ctx, const char *text);     /* a message that must stay visible */
    void *ctx;
};

struct run_setup {
    const struct backend *backend; /* the job's */
    const char *self;              /* path of tp-run, to start it in its other roles */
    const struct environment *env;
    const struct run_reporter *reporter;
};

/* Run the job, or take it over from a tp-run that was killed. TP_OK: all steps are done.
 * TP_E_STOPPED: it has saved and ended on request. TP_E_EXISTS: another tp-run runs it.
 * Otherwise the job has failed, and err says why. */
tp_status run_job(const struct job *job, const struct run_setup *setup, struct tp_err *err);

/* The status of a job that no tp-run runs, from its journal. The fields are those of a running job,
 * with "running": false. TP_E_NOTFOUND: it has not been run. */
tp_status run_status_stored(json_t **out, const struct job *job, const struct backend *backend,
                            struct tp_err *err);

/* Whether ranks of the job run although its tp-run was killed. */
bool run_leaves_ranks(const struct job *job);

#endif
