/*
 * orchestrator/plan/conversion.h - a checkpoint of another layout: read it as it is, or convert it
 * first?
 *
 * tp-train's --resume reads any layout. It reads each byte once, a little more where a rank needs a
 * part of a chunk only; a conversion reads, writes and is read again. So for tp-train the shorter
 * of the two predicted times is taken, from what reading, loading and converting have been measured
 * to take in this job; that is reading, unless loading across layouts turned out to be several
 * times slower than plain reading. Any other program is taken to read its own layout alone: its
 * checkpoints are converted. `reshard: always` and `never` overrule both. Pure arithmetic.
 */
#ifndef ORCHESTRATOR_PLAN_CONVERSION_H
#define ORCHESTRATOR_PLAN_CONVERSION_H

#include <stdbool.h>
#include <stdint.h>

#include "layout/spec.h"
#include "orchestrator/job/job.h"

enum { CONVERSION_TEXT_MAX = 256, CONVERSION_SPEC_MAX = 96 };

/* Bytes a second; 0: not measured yet. */
struct conversion_rates {
    double read;    /* by verification: plain reading */
    double load;    /* by ranks that read a checkpoint of another layout, of its bytes */
    double convert; /* by tp-reshard, of the checkpoint's bytes */
};

struct conversion_plan {
    bool differs; /* the layout is another one: there is something to decide */
    bool convert;
    double resume_seconds, convert_seconds; /* predicted; the latter with the reading afterwards */
    char why[CONVERSION_TEXT_MAX];          /* one sentence */
};

/* Decide for a checkpoint of `bytes` bytes at `from` and a launch at `to`. */
void conversion_decide(struct conversion_plan *out, const struct job *job, const struct spec *from,
                       const struct spec *to, int64_t bytes, const struct conversion_rates *rates);

/* Every axis by name, for tp-reshard --to, which leaves alone what is not named. Returns buf. */
char *conversion_spec(char buf[CONVERSION_SPEC_MAX], const struct spec *s);

#endif
