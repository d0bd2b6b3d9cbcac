/*
 * orchestrator/watch/rank_progress.h - how far each rank is, and which one keeps the others
 * waiting. Inside orchestrator/watch/ only.
 */
#ifndef ORCHESTRATOR_WATCH_RANK_PROGRESS_H
#define ORCHESTRATOR_WATCH_RANK_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/heartbeat.h"

struct rank_progress {
    bool seen;  /* it has reported */
    int skip;   /* number of next steps that are not measured */
    char state; /* of its process, as /proc writes it; 0: not known */
    struct heartbeat_status status;
    int64_t changed_ns; /* when it last made progress, by the watcher's clock */
};

/* The rank that the others wait for, -1: none can be named. A rank that has not reported is behind
 * all others; one that is done is behind none. If several are equally far behind, it is the one
 * that the kernel shows as stopped. */
int rank_progress_last(const struct rank_progress rank[], int world);

/* The rank that is stopped (SIGSTOP, a debugger) for longer than a step may take, deadline_ns; -1:
 * none, or all are. It makes no progress in any phase, so the longer deadlines of starting and
 * saving do not apply. */
int rank_progress_stopped(const struct rank_progress rank[], int world, int64_t now_ns,
                          int64_t deadline_ns);

#endif
