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

/* Whether there is something to report: text gets a sentence, *lost the number of events that could
 * not be sent and were not reported before. The first failure after a success is reported at once,
 * those that follow it at the next success or after webhook_wait. */
bool webhook_failed(char *text, size_t size, int *lost, struct webhook *w);

/* Wait at most `seconds` until the queue is empty. What is left is lost. */
void webhook_wait(struct webhook *w, double seconds);
void webhook_close(struct webhook *w);

#endif
