/*
 * orchestrator/control.h - requests from another terminal: a unix socket in the state folder.
 *
 * One request a connection: a JSON object {"verb": ..., ...} and a newline; one JSON object comes
 * back: {"ok": true, ...} or {"ok": false, "error": sentence, "exit": code}. Only the user who owns
 * the job can connect (mode 0600).
 */
#ifndef ORCHESTRATOR_CONTROL_H
#define ORCHESTRATOR_CONTROL_H

#include <jansson.h>

#include "core/err.h"

struct control;

/* Listen on STATE/control. */
tp_status control_open(struct control **out, const char *state, struct tp_err *err);
void control_close(struct control *c);

/* For epoll: readable when a request waits. */
int control_fd(const struct control *c);

/* Answer the requests that wait. */
void control_serve(struct control *c, json_t *(*answer)(void *ctx, const json_t *request),
                   void *ctx);

/* The other side: send a request, get the answer (the caller decrefs).
 * TP_E_NOTFOUND: nobody listens. */
tp_status control_ask(json_t **answer, const char *state, const json_t *request,
                      struct tp_err *err);

#endif
