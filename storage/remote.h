/*
 * storage/remote.h - requests to web servers and S3-compatible stores: signed, repeated when that
 * may help, and explained when it does not.
 *
 * A request is tried again after a connection that failed, a stalled or short transfer, and the
 * replies 408, 429 and 5xx. The pauses grow exponentially, with a random part, and Retry-After is
 * obeyed. After `timeout_s` of that the request has failed. The time in which bytes of a body move
 * does not count, so a slow link is no error.
 *
 * When a store says that the credentials have expired, the files that they came from are read
 * again, and the request is sent again when they have others. When they do not, but the credentials
 * were valid earlier in this run, it is tried again as above.
 *
 * Credentials are sent only to the endpoint of their store: requests that carry them do not follow
 * redirects. They are never part of a message, and neither is text that a server sent, but for its
 * error code.
 *
 * Remote paths travel through the program as text, like local ones. So what they need besides (the
 * settings and the connections) belongs to the process, and remote_configure sets it once.
 */
#ifndef STORAGE_REMOTE_H
#define STORAGE_REMOTE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"
#include "storage/aws_config.h"
#include "storage/http.h"
#include "storage/remote_request.h"

struct remote_settings {
    struct aws_config_environment aws; /* its texts are borrowed for as long as the process lives */
    const char *ca_file;               /* as http_client_options; borrowed */
    double timeout_s;                  /* without progress; 0: the default */
    int connections; /* requests in flight while an object is read; 0: the default */
    void (*notify)(const char *sentence); /* called when a request has been repeated for a while,
                                             from any thread; may be NULL */
};

enum { REMOTE_TIMEOUT_S = 120, REMOTE_CONNECTIONS = 8, REMOTE_CONNECTIONS_MAX = 64 };

/* Of all that was fetched and not yet read, unless remote_object_limit says otherwise. */
enum { REMOTE_SEGMENTS_BYTES = 64 << 20 };

/* The settings of this process; *settings is copied. Call it before any thread uses a remote
 * path. */
void remote_configure(const struct remote_settings *settings);

/* Requests that may be in flight. */
int remote_connections(void);

/* Send a request until there is a reply that another try would not change; its status is the
 * caller's to check, for example with remote_fail. TP_E_IO: there was no such reply in time.
 * TP_E_USAGE: there are no credentials, or the path is wrong. Thread safe. */
tp_status remote_send(struct http_reply *reply, const struct remote_request *q, struct tp_err *err);

/* From now on (or not any more) a signal that asks to stop (core/stop.h) ends reads, and requests
 * that may_stop, that would be tried again: TP_E_STOPPED. For jobs that can begin again or continue
 * when they are stopped; a save, and what makes objects appear, must not end so. Thread safe. */
void remote_tries_stop(bool stop);

/* Bytes of the requests' bodies that servers have accepted since the process began. Thread safe. */
int64_t remote_sent_bytes(void);

/* A sentence for a reply that is not the one hoped for. TP_E_NOTFOUND: 404 and 410 to a GET;
 * otherwise TP_E_IO. */
tp_status remote_fail(const struct remote_request *q, const struct http_reply *reply,
                      struct tp_err *err);

#endif
