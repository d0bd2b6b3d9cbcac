/*
 * orchestrator/process/home.h - records where the tp-run of a job runs, in STATE/home.
 *
 * Many hosts may share a state folder, but tp-run's socket can be reached only on its own host.
 */
#ifndef ORCHESTRATOR_PROCESS_HOME_H
#define ORCHESTRATOR_PROCESS_HOME_H

#include <stdbool.h>

#include "core/err.h"

enum { HOME_TEXT = 256 };

struct home {
    char host[HOME_TEXT]; /* of gethostname there */
    char node[HOME_TEXT]; /* the scheduler's name for it; "": none */
    long job;             /* the scheduler's job in which tp-run runs, 0: none */
};

/* Describe this host; the caller knows job and node from the scheduler. */
void home_here(struct home *out, long job, const char *node);

/* Write or remove `home` in the open state folder. */
tp_status home_write(const struct home *home, int dir, struct tp_err *err);
void home_remove(int dir);

/* False: no tp-run runs this job, or the state folder is not of this user alone. */
bool home_read(struct home *out, const char *state);

/* Whether tp-run runs on another host; then *out says where. */
bool home_is_elsewhere(struct home *out, const char *state);

#endif
