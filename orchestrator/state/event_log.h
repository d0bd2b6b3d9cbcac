/*
 * orchestrator/state/event_log.h - what happened, for people and scripts: STATE/events.jsonl.
 *
 * One JSON object a line, and the newest of them in memory for the status page. Fields: time
 * (seconds since 1970), event, attempt, layout, step; reason (a code) and message (its sentence)
 * where there is one; and what belongs to the event, such as rank, node, seconds.
 */
#ifndef ORCHESTRATOR_STATE_EVENT_LOG_H
#define ORCHESTRATOR_STATE_EVENT_LOG_H

#include <jansson.h>
#include <stdbool.h>

#include "core/err.h"

enum { EVENT_LOG_KEPT = 500 };

struct event_log;

/* Open STATE/events.jsonl for appending, and read what is there. */
tp_status event_log_open(struct event_log **out, const char *state, struct tp_err *err);

/* Append an event; takes over the reference. It is written at once and not synced, because the
 * journal is what a takeover relies on. TP_E_IO. */
tp_status event_log_add(struct event_log *e, json_t *event, struct tp_err *err);

/* The newest EVENT_LOG_KEPT, oldest first; borrowed. */
const json_t *event_log_list(const struct event_log *e);

void event_log_close(struct event_log *e);

#endif
