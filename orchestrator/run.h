/*
 * orchestrator/run.h - run a job to its end, restarting it as needed.
 */
#ifndef ORCHESTRATOR_RUN_H
#define ORCHESTRATOR_RUN_H

#include <jansson.h>

#include "core/err.h"
#include "orchestrator/job/job.h"

/* How run_job talks to people; each may be NULL. */
struct run_reporter {
    void (*event)(void *ctx, const json_t *event); /* as in events.jsonl */
    void (*line)(void *ctx, const char *text);     /* the live line, at most twice a second */
    void (*note)(void *ctx, const char *text);     /* said once, and to be kept */
    void *ctx;
};

/* Run or take over the job. self: path of the tp-run program, for keepers.
 * job: with backend slurm its nodes are set here while it runs, from the allocation.
 * TP_OK: all steps are done. TP_E_STOPPED: it was asked to stop, and the job saved and ended.
 * TP_E_EXISTS: another tp-run runs it. Else the job has failed; err says why. */
tp_status run_job(struct job *job, const char *self, const struct run_reporter *voice,
                  struct tp_err *err);

/* Where a job stands that no tp-run is running, from its journal: the same fields as of one that
 * runs, with "running": false. TP_E_NOTFOUND: it was never run. */
tp_status run_status_stored(json_t **out, const struct job *job, struct tp_err *err);

#endif
