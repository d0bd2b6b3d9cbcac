/*
 * orchestrator/state/time_account.h - what the time was spent on, and the loss curve of all
 * attempts.
 *
 * Spans of time follow each other without gaps. When a fault is found, the end of the training span
 * is divided: steps since the newest checkpoint are TIME_LOST, and the time from the last progress
 * to the verdict is TIME_DETECTING. STATE/timeline.jsonl keeps the spans and STATE/curve.jsonl the
 * points across restarts of tp-run.
 */
#ifndef ORCHESTRATOR_STATE_TIME_ACCOUNT_H
#define ORCHESTRATOR_STATE_TIME_ACCOUNT_H

#include <jansson.h>
#include <stdint.h>

#include "core/err.h"

enum time_account_cause {
    TIME_TRAINING,
    TIME_SAVING,
    TIME_LOST,      /* steps that must be repeated */
    TIME_DETECTING, /* from the last progress to the verdict */
    TIME_PLANNING,
    TIME_RESHARDING,
    TIME_STARTING,
    TIME_WAITING,  /* for nodes, or for the end of a back-off */
    TIME_STOPPING, /* the last step and save of an attempt that was asked to stop */
    TIME_CAUSES,
};

struct time_account;

const char *time_account_cause_name(enum time_account_cause c);

/* spent: borrowed; gets the sums by cause. now: clock_seconds. */
tp_status time_account_open(struct time_account **out, const char *state, double *spent, double now,
                            struct tp_err *err);

/* From `now` on, time counts for this cause. */
void time_account_switch(struct time_account *l, enum time_account_cause cause, double now);

/* Bring the sums up to date. */
void time_account_touch(struct time_account *l, double now);

/* A fault was found now. The last progress was at `alive`, and steps after the time `saved` are
 * lost. The account continues with `next`. */
void time_account_fault(struct time_account *l, double saved, double alive,
                        enum time_account_cause next, double now);

/* Write the spans that have ended. They do not change any more. */
void time_account_flush(struct time_account *l);

/* Add a point to the loss curve, if it is new. */
void time_account_loss(struct time_account *l, int64_t attempt, int64_t step, double loss);

/* For the status page: {"spans": [[begin, end, cause]], "curve": [[attempt, step, loss]]}, begin
 * and end in seconds of the wall clock, at most a few thousand entries. If there are more spans,
 * the time is divided into equal parts, each with its share of each cause. */
json_t *time_account_json(const struct time_account *l, double now);

void time_account_close(struct time_account *l, double now);

#endif
