/*
 * orchestrator/web/control.h - requests from another terminal: a unix socket in the state folder.
 *
 * One request a connection: a JSON object {"verb": ..., ...} and a newline; one JSON object comes
 * back: {"ok": true, ...} or {"ok": false, "error": sentence, "exit": code}. Only the user who owns
 * the job can connect (mode 0600). A socket is of one host, a state folder may be shared by many:
 * STATE/home says on which host tp-run is, and in which Slurm job, through which it can be reached.
 */
#ifndef ORCHESTRATOR_WEB_CONTROL_H
#define ORCHESTRATOR_WEB_CONTROL_H

#include <jansson.h>
#include <stdbool.h>

#include "core/err.h"

struct control;

/* Where the tp-run of a job is. */
struct control_home {
    char host[256]; /* as gethostname says there */
    char node[256]; /* as Slurm calls it; "" outside of Slurm */
    long slurm_job; /* around it, 0: none */
};

/* Listen on STATE/control, and say so in STATE/home. */
tp_status control_open(struct control **out, const char *state, struct tp_err *err);
void control_close(struct control *c);

/* Where it is; false: nowhere. */
bool control_home_read(struct control_home *out, const char *state);

/* Where it is, if that is another host than this one; false: it is here, or nowhere. */
bool control_is_elsewhere(struct control_home *out, const char *state);

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
