/*
 * orchestrator/web/status_page.h - the status page: / (one page, no outside assets), /status,
 * /timeline, /events (JSON) and /metrics (Prometheus).
 *
 * Bound to the address of the job file; anything but loopback needs a token, which requests carry
 * as "Authorization: Bearer TOKEN" or "?token=TOKEN". Read only.
 */
#ifndef ORCHESTRATOR_WEB_STATUS_PAGE_H
#define ORCHESTRATOR_WEB_STATUS_PAGE_H

#include <jansson.h>

#include "core/err.h"

/* What the page shows; each returns a new reference or NULL. */
struct status_page_source {
    json_t *(*status)(void *ctx);
    json_t *(*timeline)(void *ctx);
    json_t *(*events)(void *ctx);
    void *ctx;
};

struct status_page;

/* listen: host:port ("127.0.0.1:8080", "[::1]:0"). token_file: NULL for none.
 * TP_E_USAGE: not an address; not loopback without a token. TP_E_IO: cannot be bound. */
tp_status status_page_open(struct status_page **out, const char *listen, const char *token_file,
                           const struct status_page_source *source, struct tp_err *err);
void status_page_close(struct status_page *p);

/* For epoll; status_page_serve when it is readable, and now and then. */
int status_page_fd(const struct status_page *p);
void status_page_serve(struct status_page *p);

/* "http://127.0.0.1:40123/" */
const char *status_page_url(const struct status_page *p);

#endif
