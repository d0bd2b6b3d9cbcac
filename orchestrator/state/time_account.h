/*
 * orchestrator/state/time_account.h - what the time is spent on, and the loss curve across
 * restarts.
 *
 * Spans follow each other without gaps. When a fault is found, the end of the training span is
 * divided anew: what was trained since the newest checkpoint is lost, and from the last sign of
 * life to the verdict was detecting. STATE/timeline.jsonl keeps spans, STATE/curve.jsonl points,
 * over restarts of tp-run.
 */
#ifndef ORCHESTRATOR_STATE_TIME_ACCOUNT_H
#define ORCHESTRATOR_STATE_TIME_ACCOUNT_H

#include <jansson.h>
#include <stdint.h>

#include "core/err.h"
#include "orchestrator/state/run_record.h"

struct time_account;

/* spent: the book's sums, added to as spans end. now: CLOCK_MONOTONIC seconds. */
tp_status time_account_open(struct time_account **out, const char *state, double *spent, double now,
                            struct tp_err *err);

/* From `now` on time is spent on this. */
void time_account_switch(struct time_account *l, enum time_cause cause, double now);

/* Bring the sums up to date. */
void time_account_touch(struct time_account *l, double now);

/* A fault was found now; the last sign of life was at `alive`, and steps after `saved` (a time) are
 * lost. Switches to `next`. */
void time_account_fault(struct time_account *l, double saved, double alive, enum time_cause next,
                        double now);

/* Write out spans that will not change any more. */
void time_account_flush(struct time_account *l);

/* A point of the loss curve, if it is new. */
void time_account_loss(struct time_account *l, int64_t attempt, int64_t step, double loss);

/* For the page: {"spans": [[begin, end, cause]], "curve": [[attempt, step, loss]]}, begin and end
 * in seconds of the wall clock. At most some thousand entries: with more spans than that the time
 * is cut into equal parts, each with its shares. */
json_t *time_account_json(const struct time_account *l, double now);

void time_account_close(struct time_account *l, double now);

#endif
