/*
 * orchestrator/state/event_log.h - events for people and scripts, in STATE/events.jsonl.
 *
 * Each line is a JSON object. The newest are also in memory for the status page. Fields: time
 * (seconds since 1970), event, attempt, layout, step; optional reason (a code) and message (its
 * sentence); and fields of the event, such as rank, node, seconds.
 */
#ifndef ORCHESTRATOR_STATE_EVENT_LOG_H
#define ORCHESTRATOR_STATE_EVENT_LOG_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"

enum { EVENT_LOG_KEPT = 500 };

struct event_log;

/* Open STATE/events.jsonl for appending, and read the events in it. */
tp_status event_log_open(struct event_log **out, const char *state, struct tp_err *err);

/* Append an event; takes over the reference. It is written at once but not synced, because
 * a takeover relies on the journal, not on events. TP_E_IO: it waits in memory, like those after
 * it, until it can be written. */
tp_status event_log_add(struct event_log *e, json_t *event, struct tp_err *err);

/* Write the events that wait; nothing is written of one that does not fit. TP_E_IO: some still
 * wait. */
tp_status event_log_flush(struct event_log *e, struct tp_err *err);
int event_log_waiting(const struct event_log *e);

/* The number of events that were lost, because more than EVENT_LOG_KEPT had to wait. Counts again
 * from 0. */
int64_t event_log_take_lost(struct event_log *e);

/* The newest EVENT_LOG_KEPT events, oldest first; borrowed. */
const json_t *event_log_list(const struct event_log *e);

void event_log_close(struct event_log *e);

#endif
