/*
 * orchestrator/plan/conversion.h - decides whether a checkpoint of another layout is converted or
 * read directly.
 *
 * tp-train's --resume reads any layout. It reads each byte once, and a little more when a rank
 * needs a part of a chunk. A conversion reads and writes each byte, and the result is read again.
 * For tp-train the faster way is chosen, predicted from the measured rates of reading, loading and
 * converting in this job; usually that is reading. Other programs are assumed to read only their
 * own layout, so their checkpoints are converted. `reshard: always` and `never` override both. A
 * step in a store is never converted, because it cannot be replaced in one go. No I/O.
 */
#ifndef ORCHESTRATOR_PLAN_CONVERSION_H
#define ORCHESTRATOR_PLAN_CONVERSION_H

#include <stdbool.h>
#include <stdint.h>

#include "layout/spec.h"
#include "orchestrator/job/job.h"
#include "orchestrator/state/event.h"

enum { CONVERSION_TEXT_MAX = 256, CONVERSION_SPEC_MAX = 96 };

/* Bytes per second; 0: not measured yet. */
struct conversion_rates {
    double read;    /* by verification, which only reads */
    double load;    /* by ranks that read a checkpoint of another layout: its bytes */
    double convert; /* by tp-reshard: the checkpoint's bytes */
};

struct conversion_plan {
    bool differs; /* the layouts differ; otherwise there is nothing to decide */
    bool convert;
    double resume_seconds,
        convert_seconds; /* predicted; convert_seconds includes reading afterwards */
    enum event_reason reason;
    char message[CONVERSION_TEXT_MAX];
};

/* Decide for a checkpoint of `bytes` bytes written at `from`, and a launch at `to`. */
void conversion_decide(struct conversion_plan *out, const struct job *job, const struct spec *from,
                       const struct spec *to, int64_t bytes, const struct conversion_rates *rates);

/* A spec that names every axis, because tp-reshard --to keeps the axes that are not named. Returns
 * buf. */
char *conversion_spec(char buf[CONVERSION_SPEC_MAX], const struct spec *s);

#endif
