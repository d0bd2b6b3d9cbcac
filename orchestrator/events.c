/* orchestrator/events.c - see orchestrator/events.h. */
#include "orchestrator/events.h"

#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct events {
    int fd;
    char path[PATH_MAX];
    json_t *list;
};

static void keep(struct events *e, json_t *event)
{
    json_array_append_new(e->list, event);
    if (json_array_size(e->list) > EVENTS_KEPT)
        json_array_remove(e->list, 0);
}

/* Lines that do not parse (a torn last one) are passed over. */
static void read_old(struct events *e)
{
    FILE *f = fopen(e->path, "re");
    char *line = NULL;
    size_t size = 0;

    while (f && getline(&line, &size, f) > 0) {
        json_t *event = json_loads(line, 0, NULL);

        if (event)
            keep(e, event);
    }
    free(line);
    if (f)
        fclose(f);
}

/* A torn last line (a crash, a full disk) is ended, so that the next event has its own. */
static bool ends_line(int fd)
{
    off_t size = lseek(fd, 0, SEEK_END);
    char last = '\n';

    if (size > 0 && pread(fd, &last, 1, size - 1) != 1)
        return false;
    return last == '\n' || write(fd, "\n", 1) == 1;
}

tp_status events_open(struct events **out, const char *state, struct tp_err *err)
{
    struct events *e = calloc(1, sizeof *e);

    if (!e || !(e->list = json_array())) {
        free(e);
        return tp_fail(err, TP_E_NOMEM, "no memory for events");
    }
    snprintf(e->path, sizeof e->path, "%s/events.jsonl", state);
    read_old(e);
    e->fd = open(e->path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (e->fd < 0 || !ends_line(e->fd)) {
        tp_fail_errno(err, "%s: cannot open", e->path);
        events_close(e);
        return TP_E_IO;
    }
    *out = e;
    return TP_OK;
}

tp_status events_add(struct events *e, json_t *event, struct tp_err *err)
{
    char *text = json_dumps(event, JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(12));
    size_t n = text ? strlen(text) : 0;
    tp_status st = TP_OK;

    if (text)
        text[n] = '\n'; /* over the final 0: one write, one line */
    if (!text || !ends_line(e->fd) || write(e->fd, text, n + 1) != (ssize_t)n + 1)
        st = tp_fail_errno(err, "%s: cannot append", e->path);
    free(text);
    keep(e, event);
    return st;
}

const json_t *events_list(const struct events *e)
{
    return e->list;
}

void events_close(struct events *e)
{
    if (!e)
        return;
    if (e->fd >= 0)
        close(e->fd);
    json_decref(e->list);
    free(e);
}
