/* orchestrator/state/event_log.c - see orchestrator/state/event_log.h. */
#include "orchestrator/state/event_log.h"

#include <errno.h>
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
    char *waiting[EVENT_LOG_KEPT]; /* lines that could not be written yet; malloc'ed */
    int n_waiting;
    int64_t n_lost;
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
    if (e->fd < 0) {
        tp_fail_errno(err, "%s: cannot open", e->path);
        event_log_close(e);
        return TP_E_IO;
    }
    *out = e;
    return TP_OK;
}

/* ---- writing ---- */

/* Append a line, as one write, or nothing. False: see errno. */
static bool append(const struct event_log *e, char *line)
{
    const size_t n = strlen(line);
    off_t size;
    ssize_t done;

    if (!json_lines_end(e->fd) || (size = lseek(e->fd, 0, SEEK_END)) < 0)
        return false;
    line[n] = '\n'; /* in place of the final 0 */
    done = write(e->fd, line, n + 1);
    line[n] = 0;
    if (done == (ssize_t)n + 1)
        return true;
    if (done >= 0) {
        (void)!ftruncate(e->fd, size); /* otherwise json_lines_end ends the line later */
        errno = ENOSPC;
    }
    return false;
}

static void drop(struct event_log *e, int n)
{
    for (int i = 0; i < n; i++)
        free(e->waiting[i]);
    memmove(e->waiting, e->waiting + n, (size_t)(e->n_waiting - n) * sizeof e->waiting[0]);
    e->n_waiting -= n;
}

tp_status event_log_flush(struct event_log *e, struct tp_err *err)
{
    tp_status st = TP_OK;
    int n = 0;

    while (n < e->n_waiting && append(e, e->waiting[n]))
        n++;
    if (n < e->n_waiting)
        st = tp_fail_errno(err, "%s: cannot append", e->path);
    drop(e, n);
    return st;
}

/* Let a line wait, which is taken over. Without room the oldest one is lost. */
static void enqueue(struct event_log *e, char *line)
{
    if (!line || e->n_waiting == EVENT_LOG_KEPT)
        e->n_lost++;
    if (!line)
        return;
    if (e->n_waiting == EVENT_LOG_KEPT)
        drop(e, 1);
    e->waiting[e->n_waiting++] = line;
}

tp_status event_log_add(struct event_log *e, json_t *event, struct tp_err *err)
{
    char *line = json_dumps(event, JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(12));

    enqueue(e, line);
    json_lines_keep(e->list, event, EVENT_LOG_KEPT);
    return event_log_flush(e, err);
}

int event_log_waiting(const struct event_log *e)
{
    return e->n_waiting;
}

int64_t event_log_take_lost(struct event_log *e)
{
    int64_t n = e->n_lost;

    e->n_lost = 0;
    return n;
}

const json_t *event_log_list(const struct event_log *e)
{
    return e->list;
}

void event_log_close(struct event_log *e)
{
    if (!e)
        return;
    drop(e, e->n_waiting);
    if (e->fd >= 0)
        close(e->fd);
    json_decref(e->list);
    free(e);
}
