/*
 * orchestrator/state/events.h - what happened, for people and scripts: STATE/events.jsonl, one JSON
 * object a line, and the newest of them in memory for the status page.
 *
 * Fields: time (seconds since 1970), event, attempt, layout, step, and what belongs to the event:
 * rank, node, reason, seconds.
 */
#ifndef ORCHESTRATOR_STATE_EVENTS_H
#define ORCHESTRATOR_STATE_EVENTS_H

#include <jansson.h>
#include <stdbool.h>

#include "core/err.h"

enum { EVENTS_KEPT = 500 };

struct events;

/* Open STATE/events.jsonl for appending; what is there is read. */
tp_status events_open(struct events **out, const char *state, struct tp_err *err);

/* Append one; takes over the reference. Written at once, not synced: the journal is what counts. */
tp_status events_add(struct events *e, json_t *event, struct tp_err *err);

/* The newest EVENTS_KEPT, oldest first; borrowed. */
const json_t *events_list(const struct events *e);

void events_close(struct events *e);

#endif
