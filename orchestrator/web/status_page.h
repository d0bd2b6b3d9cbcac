/*
 * orchestrator/web/status_page.h - the status page: / (one page without outside assets), /status,
 * /timeline and /events (JSON), /metrics (Prometheus). Read only.
 *
 * It listens at the address in the job file. An address that is not loopback needs a token, which
 * requests carry as "Authorization: Bearer TOKEN" or "?token=TOKEN". A connection lasts at most ten
 * seconds; when there are too many, the oldest one is closed, so that slow clients keep no one out.
 */
#ifndef ORCHESTRATOR_WEB_STATUS_PAGE_H
#define ORCHESTRATOR_WEB_STATUS_PAGE_H

#include <jansson.h>

#include "core/err.h"

/* The source of the data on the page; each function returns a new reference or NULL. */
struct status_page_source {
    json_t *(*status)(void *ctx);
    json_t *(*timeline)(void *ctx);
    json_t *(*events)(void *ctx);
    void *ctx;
};

struct status_page;

/* listen: host:port ("127.0.0.1:8080", "[::1]:0"). token_file: NULL for none.
 * TP_E_USAGE: not an address, not one of this host, not loopback and without a token, or another
 * program listens there. TP_E_IO. */
tp_status status_page_open(struct status_page **out, const char *listen, const char *token_file,
                           const struct status_page_source *source, struct tp_err *err);
void status_page_close(struct status_page *p);

/* Call status_page_serve when this is readable. It does not wait. */
int status_page_fd(const struct status_page *p);
void status_page_serve(struct status_page *p);
/* Call this at each tick: it ends connections that are too old, and serves. */
void status_page_tick(struct status_page *p);

/* Serve a client that is connected already, at any kind of stream socket: for tests without TCP.
 * Takes client, also when it fails. TP_E_IO. */
tp_status status_page_add(struct status_page *p, int client, struct tp_err *err);

/* Such as "http://127.0.0.1:40123/". */
const char *status_page_url(const struct status_page *p);

#endif
