/* orchestrator/state/event_log.c - see orchestrator/state/event_log.h. */
#include "orchestrator/state/event_log.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "orchestrator/state/json_lines.h"

struct event_log {
    int fd;
    char path[PATH_MAX];
    json_t *list;
};

tp_status event_log_open(struct event_log **out, const char *state, struct tp_err *err)
{
    struct event_log *e = calloc(1, sizeof *e);

    if (!e)
        return tp_fail(err, TP_E_NOMEM, "no memory for events");
    snprintf(e->path, sizeof e->path, "%s/events.jsonl", state);
    e->list = json_lines_read(e->path, EVENT_LOG_KEPT);
    if (!e->list) {
        free(e);
        return tp_fail(err, TP_E_NOMEM, "no memory for events");
    }
    e->fd = open(e->path, O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (e->fd < 0 || !json_lines_end(e->fd)) {
        tp_fail_errno(err, "%s: cannot open", e->path);
        event_log_close(e);
        return TP_E_IO;
    }
    *out = e;
    return TP_OK;
}

tp_status event_log_add(struct event_log *e, json_t *event, struct tp_err *err)
{
    char *text = json_dumps(event, JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(12));
    size_t n = text ? strlen(text) : 0;
    tp_status st = TP_OK;

    if (text)
        text[n] = '\n'; /* replaces the final 0, so that one write has the whole line */
    if (!text || !json_lines_end(e->fd) || write(e->fd, text, n + 1) != (ssize_t)n + 1)
        st = tp_fail_errno(err, "%s: cannot append", e->path);
    free(text);
    json_lines_keep(e->list, event, EVENT_LOG_KEPT);
    return st;
}

const json_t *event_log_list(const struct event_log *e)
{
    return e->list;
}

void event_log_close(struct event_log *e)
{
    if (!e)
        return;
    if (e->fd >= 0)
        close(e->fd);
    json_decref(e->list);
    free(e);
}
