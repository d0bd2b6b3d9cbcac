/*
 * orchestrator/state/job_findings.h - what the attempts of a job have shown, for the plan of the
 * next.
 */
#ifndef ORCHESTRATOR_STATE_JOB_FINDINGS_H
#define ORCHESTRATOR_STATE_JOB_FINDINGS_H

#include <stdint.h>

#include "orchestrator/state/step_times.h"

struct job_findings {
    struct step_times times;
    struct job_findings_gpus {
        int64_t bytes; /* memory of the smallest GPU of the last attempt that has reported it; 0:
                          not known, or the ranks use no GPUs */
        int64_t overstated; /* at least so much too high is the plan's estimate of GPU memory,
                               because layouts have trained; 0: not known */
        int64_t refused; /* the least GPU memory, by the plan's estimate, of a layout that did not
                            fit; 0: none */
    } gpus;
};

#endif
