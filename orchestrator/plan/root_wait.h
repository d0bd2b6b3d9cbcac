/*
 * orchestrator/plan/root_wait.h - waits for the lock of a checkpoint root.
 *
 * Another process usually holds the lock only briefly. If it holds the lock for long, it may have
 * been stopped (SIGSTOP), so a message names it.
 */
#ifndef ORCHESTRATOR_PLAN_ROOT_WAIT_H
#define ORCHESTRATOR_PLAN_ROOT_WAIT_H

#include <stdbool.h>

#include "core/err.h"

struct root_wait {
    double since;    /* when the root was first found locked, 0: it is not locked */
    double reported; /* when that was reported */
};

/* Whether ROOT is locked at time `now`. *report: it has been locked for long, and this was not
 * reported yet; `who` has the sentence. */
bool root_wait_is_locked(struct root_wait *w, const char *root, double now, bool *report,
                         struct tp_err *who);

#endif
