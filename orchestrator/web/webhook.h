/*
 * orchestrator/web/webhook.h - POSTs events to a URL without waiting for it.
 *
 * It sends one request at a time, and a few events wait. If the URL does not answer, the newest
 * events are dropped, so the job never waits. Each event is tried three times.
 */
#ifndef ORCHESTRATOR_WEB_WEBHOOK_H
#define ORCHESTRATOR_WEB_WEBHOOK_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "core/err.h"

struct webhook;

/* url "" or NULL: *out is NULL, which every function accepts. TP_E_USAGE: it is not an http or
 * https URL with a host. */
tp_status webhook_open(struct webhook **out, const char *url, struct tp_err *err);

/* Queue an event, which is borrowed. */
void webhook_post(struct webhook *w, const json_t *event);

/* Continue transfers; call it at each tick. */
void webhook_tick(struct webhook *w);

/* True once after an event could not be sent although the one before it was: text gets a
 * sentence. */
bool webhook_failed(char *text, size_t size, struct webhook *w);

/* Wait at most `seconds` until the queue is empty. */
void webhook_wait(struct webhook *w, double seconds);
void webhook_close(struct webhook *w);

#endif
