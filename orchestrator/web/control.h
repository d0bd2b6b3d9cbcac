/*
 * orchestrator/web/control.h - requests from other terminals: a unix socket in the state folder.
 *
 * A connection has one request: a JSON object {"verb": ..., ...} and a newline. The answer is one
 * JSON object: {"ok": true, ...} or {"ok": false, "error": sentence, "exit": code}. Only the user
 * who owns the job, and root, can connect, and only on the host where tp-run is (process/home.h).
 * The socket has mode 0600 in a folder of that user alone, and both sides check whose the other
 * side is.
 *
 * Serving never waits. A client has five seconds to send its request and to take the answer; a slow
 * one delays no other. When too many are connected, the oldest connection is closed.
 */
#ifndef ORCHESTRATOR_WEB_CONTROL_H
#define ORCHESTRATOR_WEB_CONTROL_H

#include <jansson.h>

#include "core/err.h"
#include "orchestrator/process/home.h"

struct control;

/* Listen on STATE/control, and write to STATE/home that tp-run runs at `home`. TP_E_IO. TP_E_USAGE:
 * STATE is not a folder of this user alone. */
tp_status control_open(struct control **out, const char *state, const struct home *home,
                       struct tp_err *err);
void control_close(struct control *c);

/* Readable when there is something to serve. */
int control_fd(const struct control *c);

/* Receive and send what is possible without waiting, and answer the requests that are complete.
 * `answer` returns a new reference. */
void control_serve(struct control *c, json_t *(*answer)(void *ctx, const json_t *request),
                   void *ctx);

/* Close the connections whose time is over; call it at each tick. */
void control_tick(struct control *c);

/* The client's side: send a request and get the answer, which the caller decrefs.
 * TP_E_NOTFOUND: no tp-run listens on this host. TP_E_IO: it does not answer. TP_E_USAGE: folder or
 * socket belong to another user. */
tp_status control_ask(json_t **answer, const char *state, const json_t *request,
                      struct tp_err *err);

#endif
