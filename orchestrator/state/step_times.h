/*
 * orchestrator/state/step_times.h - the step times that were measured in this job.
 */
#ifndef ORCHESTRATOR_STATE_STEP_TIMES_H
#define ORCHESTRATOR_STATE_STEP_TIMES_H

#include <jansson.h>

#include "orchestrator/job/run_config.h"

enum { STEP_TIMES_MAX = 64 };

struct step_time {
    char config[RUN_CONFIG_TEXT_MAX]; /* by run_config_format */
    double seconds;                   /* median of a step */
};

struct step_times {
    int n;
    struct step_time entry[STEP_TIMES_MAX];
};

/* Set the time of a config. It is dropped if there is no room for another config. */
void step_times_set(struct step_times *t, const struct run_config *config, double seconds);

/* The time of a config, 0: it was not measured. */
double step_times_get(const struct step_times *t, const struct run_config *config);

/* The longest time of any config, 0: none. */
double step_times_longest(const struct step_times *t);

/* An object from config to seconds, and back. */
json_t *step_times_json(const struct step_times *t);
void step_times_read(struct step_times *t, const json_t *json);

#endif
