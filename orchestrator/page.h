/*
 * orchestrator/page.h - the status page: / (one page, no outside assets), /status, /timeline,
 * /events (JSON) and /metrics (Prometheus).
 *
 * Bound to the address of the job file; anything but loopback needs a token, which requests carry
 * as "Authorization: Bearer TOKEN" or "?token=TOKEN". Read only.
 */
#ifndef ORCHESTRATOR_PAGE_H
#define ORCHESTRATOR_PAGE_H

#include <jansson.h>

#include "core/err.h"

/* What the page shows; each returns a new reference or NULL. */
struct page_source {
    json_t *(*status)(void *ctx);
    json_t *(*timeline)(void *ctx);
    json_t *(*events)(void *ctx);
    void *ctx;
};

struct page;

/* listen: host:port ("127.0.0.1:8080", "[::1]:0"). token_file: NULL for none.
 * TP_E_USAGE: not an address; not loopback without a token. TP_E_IO: cannot be bound. */
tp_status page_open(struct page **out, const char *listen, const char *token_file,
                    const struct page_source *source, struct tp_err *err);
void page_close(struct page *p);

/* For epoll; page_serve when it is readable, and now and then. */
int page_fd(const struct page *p);
void page_serve(struct page *p);

/* "http://127.0.0.1:40123/" */
const char *page_url(const struct page *p);

#endif
