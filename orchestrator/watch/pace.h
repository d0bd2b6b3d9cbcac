/*
 * orchestrator/watch/pace.h - how long each rank computes, which rank is slow, and whether all
 * steps are slow.
 *
 * A step of a rank has three parts: it waits in collectives for other ranks, it waits for a
 * processor that other programs use, and it computes. Only the third part is the rank's own. The
 * parts are measured over windows of at least `slow_steps` steps and a second. What is not
 * training, such as a save, is left out, so a window may be longer than the time between two saves.
 *
 * Slow rank. A rank is named only when there is no doubt: what it computes, in two windows in a
 * row, is more than `slow` times the median of what the other ranks need outside of collectives,
 * including their waiting for a processor. So a busy host makes the others look slower and never
 * the rank, and it is better not to name a rank than to name a wrong one. Ranks are compared with
 * those of their own pipeline stage, because stages differ. A rank that does not say how long it
 * waited for a processor (an older libtp-progress) is named after four windows.
 *
 * Slowdown. Steps that take more than twice the median of the steps before, for 50 steps, are
 * reported once, with the part that grew.
 *
 * Input are heartbeats; times in nanoseconds; no I/O.
 */
#ifndef ORCHESTRATOR_WATCH_PACE_H
#define ORCHESTRATOR_WATCH_PACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/heartbeat.h"

struct pace;

enum pace_kind {
    PACE_FINE,
    PACE_SLOW_RANK, /* once for a rank */
    PACE_SLOWDOWN,  /* once, until steps have been fast again */
};

/* The part of a step that grew most. */
enum pace_part { PACE_RANK, PACE_COMPUTE, PACE_PROCESSOR, PACE_COLLECTIVES };

struct pace_finding {
    enum pace_kind kind;
    int rank;            /* the slow one, -1: none is named */
    double times;        /* the median of the others, or the steps before */
    enum pace_part part; /* PACE_SLOWDOWN */
    char text[256];      /* one sentence */
};

/* slow: 0: no rank is named. NULL: no memory. */
struct pace *pace_new(int world, double slow, int64_t slow_steps);
void pace_free(struct pace *p);

/* Set the pipeline stage of a rank (initially 0). */
void pace_set_stage(struct pace *p, int rank, int stage);

/* Pass the heartbeat of a rank after a step. skip: the step contains a pause, so it is not
 * measured. */
void pace_feed(struct pace *p, int rank, const struct heartbeat_status *status, bool skip);

/* What was found since the last call, one finding at a time. */
void pace_judge(struct pace *p, struct pace_finding *out);

/* What the rank computes per step, in seconds, in its last window; 0: not known yet. */
double pace_compute_seconds(const struct pace *p, int rank);

#endif
