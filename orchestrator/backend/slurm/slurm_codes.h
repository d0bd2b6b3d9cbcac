/*
 * orchestrator/backend/slurm/slurm_codes.h - the codes that this backend adds to state/event.h.
 */
#ifndef ORCHESTRATOR_BACKEND_SLURM_SLURM_CODES_H
#define ORCHESTRATOR_BACKEND_SLURM_SLURM_CODES_H

#include "orchestrator/state/event.h"

enum slurm_reason {
    SLURM_REASON_NONE,
    SLURM_ALLOCATION_OVER,
    SLURM_IDLE_NODES,
    SLURM_JOB_CONTINUES,
    SLURM_JOB_ENDS,
    SLURM_NODE_ADDED,
    SLURM_NODE_ANSWERS,
    SLURM_NODE_REMOVED,
    SLURM_NODE_STATE,
    SLURM_NODE_UNREACHABLE,
    SLURM_NO_NEXT_JOB,
    SLURM_NO_PROGRESS,
    SLURM_PREEMPTED,
    SLURM_REFUSED,
    SLURM_REQUEUED,
    SLURM_TOO_FEW_NODES,
    SLURM_UNREACHABLE,
    SLURM_WALL_TIME,
    SLURM_REASONS,
};

/* What an event `allocation` says. */
enum slurm_result {
    SLURM_ASKED,
    SLURM_CANNOT_GROW,
    SLURM_CANNOT_REQUEUE,
    SLURM_ENDS,
    SLURM_FOUND,
    SLURM_GIVEN_BACK,
    SLURM_GROWN,
    SLURM_HELD,
    SLURM_NODE_KEPT,
    SLURM_NOT_GIVEN_BACK,
    SLURM_OVER,
    SLURM_ANSWERS,
    SLURM_RESUMED,
    SLURM_STOOD_STILL,
    SLURM_SUSPENDED,
    SLURM_TAKEN,
    SLURM_NO_ANSWER,
    SLURM_WAITS,
    SLURM_RESULTS,
};

const char *slurm_reason_name(enum slurm_reason reason); /* "" for none */
const char *slurm_result_name(enum slurm_result result);

extern const struct event_code SLURM_EVENT_CODES[], SLURM_REASON_CODES[], SLURM_RESULT_CODES[];

#endif
