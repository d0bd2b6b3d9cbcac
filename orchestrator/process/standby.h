/*
 * orchestrator/process/standby.h - waits on another node to replace a tp-run whose node is lost.
 *
 * Only the scheduler knows for sure that a node is lost, so the backend decides: `look` takes over
 * not before the node has been taken away from the job, so that two tp-runs never run it at once.
 */
#ifndef ORCHESTRATOR_PROCESS_STANDBY_H
#define ORCHESTRATOR_PROCESS_STANDBY_H

#include <stdbool.h>

#include "orchestrator/process/home.h"

enum standby_verdict {
    STANDBY_WAIT,      /* tp-run's node is there, or nothing is known about it */
    STANDBY_TAKE_OVER, /* it is lost */
    STANDBY_END,       /* the job around both is over */
};

struct standby {
    const char *state; /* the job's state folder */
    long job;          /* the scheduler's job that both are in */
    const char *node;  /* this one, as the scheduler calls it */
    double period;     /* seconds between two looks */
    enum standby_verdict (*look)(void *ctx, const struct home *home);
    void *ctx;
};

/* Wait until tp-run has ended, or runs here or in another scheduler's job (false), or its node is
 * lost (true). */
bool standby_wait(const struct standby *s);

#endif
