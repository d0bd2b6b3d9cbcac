/*
 * orchestrator/process/standby.h - waits on another node to replace a tp-run whose node is lost.
 *
 * Only the scheduler knows with certainty that a node is lost, so the backend decides: `look` asks
 * to take over only after the scheduler has removed the node from the job. So two tp-runs never run
 * the job at the same time. A single answer of the scheduler is not believed, because it may be
 * wrong while its controller restarts: `look` must say the same twice in a row.
 */
#ifndef ORCHESTRATOR_PROCESS_STANDBY_H
#define ORCHESTRATOR_PROCESS_STANDBY_H

#include <stdbool.h>

#include "orchestrator/process/home.h"

enum standby_verdict {
    STANDBY_WAIT,      /* tp-run's node is in the job, or its state is not known */
    STANDBY_TAKE_OVER, /* tp-run's node is lost */
    STANDBY_END,       /* the scheduler's job is over */
};

struct standby {
    const char *state; /* the job's state folder */
    long job;          /* the scheduler's job that both are in */
    const char *node;  /* the scheduler's name for this node */
    double period;     /* seconds between two checks */
    enum standby_verdict (*look)(void *ctx, const struct home *home);
    void *ctx;
};

/* Wait until tp-run's node is lost (true), or until tp-run has ended or runs on this node or in
 * another job of the scheduler (false). */
bool standby_wait(const struct standby *s);

#endif
