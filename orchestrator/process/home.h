/*
 * orchestrator/process/home.h - where the tp-run of a job runs: STATE/home.
 *
 * A state folder may be shared by many hosts, while tp-run's socket can be reached on one alone.
 */
#ifndef ORCHESTRATOR_PROCESS_HOME_H
#define ORCHESTRATOR_PROCESS_HOME_H

#include <stdbool.h>

#include "core/err.h"

enum { HOME_TEXT = 256 };

struct home {
    char host[HOME_TEXT]; /* as gethostname says there */
    char node[HOME_TEXT]; /* as the scheduler calls it; "" where there is none */
    long job;             /* the scheduler's job around tp-run, 0: none */
};

/* This host, with what the caller knows of the scheduler. */
void home_here(struct home *out, long job, const char *node);

tp_status home_write(const struct home *home, const char *state, struct tp_err *err);
void home_remove(const char *state);

/* False: no tp-run runs this job. */
bool home_read(struct home *out, const char *state);

/* Whether it runs on another host than this one; then *out says where. */
bool home_is_elsewhere(struct home *out, const char *state);

#endif
