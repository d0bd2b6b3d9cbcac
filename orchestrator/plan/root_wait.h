/*
 * orchestrator/plan/root_wait.h - waits for the lock of a checkpoint root.
 *
 * Another process usually holds the lock for moments. When it lasts, the holder may have been
 * stopped, and people should know which one it is.
 */
#ifndef ORCHESTRATOR_PLAN_ROOT_WAIT_H
#define ORCHESTRATOR_PLAN_ROOT_WAIT_H

#include <stdbool.h>

#include "core/err.h"

struct root_wait {
    double since;    /* when it was first found locked, 0: it is not */
    double reported; /* when that was reported */
};

/* Whether ROOT is locked at time `now`. *report: it has been for long enough to report that, once;
 * the sentence is in who. */
bool root_wait_is_locked(struct root_wait *w, const char *root, double now, bool *report,
                         struct tp_err *who);

#endif
