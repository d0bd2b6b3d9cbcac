/*
 * orchestrator/web/webhook.h - POST events to a URL without ever waiting for it.
 *
 * At most one request is under way and a few wait; a URL that does not answer costs the newest
 * events their delivery, never the job its time. Each is tried three times.
 */
#ifndef ORCHESTRATOR_WEB_WEBHOOK_H
#define ORCHESTRATOR_WEB_WEBHOOK_H

#include <jansson.h>

#include "core/err.h"

struct webhook;

/* url "" or NULL: *out = NULL, which every call takes. Only http and https. */
tp_status webhook_open(struct webhook **out, const char *url, struct tp_err *err);

/* Queue one. Borrowed. */
void webhook_post(struct webhook *w, const json_t *event);

/* Let transfers go on; call it at each tick. */
void webhook_tick(struct webhook *w);

/* Wait up to `seconds` for what is queued, and free. */
void webhook_close(struct webhook *w, double seconds);

#endif
