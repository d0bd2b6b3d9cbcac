/*
 * orchestrator/ledger.h - what the time is spent on, and the loss curve across restarts.
 *
 * Spans follow each other without gaps. When a fault is found, the end of the training span is
 * divided anew: what was trained since the newest checkpoint is lost, and from the last sign of
 * life to the verdict was detecting. STATE/timeline.jsonl keeps spans, STATE/curve.jsonl points,
 * over restarts of tp-run.
 */
#ifndef ORCHESTRATOR_LEDGER_H
#define ORCHESTRATOR_LEDGER_H

#include <jansson.h>
#include <stdint.h>

#include "core/err.h"
#include "orchestrator/book.h"

struct ledger;

/* spent: the book's sums, added to as spans end. now: CLOCK_MONOTONIC seconds. */
tp_status ledger_open(struct ledger **out, const char *state, double *spent, double now,
                      struct tp_err *err);

/* From `now` on time is spent on this. */
void ledger_switch(struct ledger *l, enum ledger_cause cause, double now);

/* Bring the sums up to date. */
void ledger_touch(struct ledger *l, double now);

/* A fault was found now; the last sign of life was at `alive`, and steps after `saved` (a time) are
 * lost. Switches to `next`. */
void ledger_fault(struct ledger *l, double saved, double alive, enum ledger_cause next, double now);

/* Write out spans that will not change any more. */
void ledger_flush(struct ledger *l);

/* A point of the loss curve, if it is new. */
void ledger_loss(struct ledger *l, int64_t attempt, int64_t step, double loss);

/* For the page: {"spans": [[begin, end, cause]], "curve": [[attempt, step, loss]]}, begin and end
 * in seconds of the wall clock. At most some thousand entries: with more spans than that the time
 * is cut into equal parts, each with its shares. */
json_t *ledger_json(const struct ledger *l, double now);

void ledger_close(struct ledger *l, double now);

#endif
