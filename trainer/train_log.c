/* trainer/train_log.c - see trainer/train_log.h. */
#include "trainer/train_log.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/file.h"

enum { NUMBER_MAX = 32, LINE_MAX_BYTES = 4096 };

static const char line_begin[] = "{\"step\": ";

/* 9 significant digits. JSON has no NaN or infinity, so they become null. */
static const char *number(char buf[NUMBER_MAX], double v)
{
    if (!isfinite(v))
        return "null";
    snprintf(buf, NUMBER_MAX, "%.9g", v);
    return buf;
}

tp_status train_log_open(struct train_log *out, const char *path, struct tp_err *err)
{
    struct train_log l = { .path = path };

    *out = l;
    l.fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (l.fd < 0)
        return tp_fail_errno(err, "--log %s: cannot be written", path);
    l.waiting = malloc(TRAIN_LOG_WAITING_MAX);
    *out = l;
    return l.waiting ? TP_OK : tp_fail(err, TP_E_NOMEM, "--log %s: no memory", path);
}

void train_log_close(struct train_log *l)
{
    if (l->path && l->fd >= 0)
        close(l->fd);
    free(l->waiting);
    *l = (struct train_log){ 0 };
}

tp_status train_log_empty(const struct train_log *l, struct tp_err *err)
{
    struct stat s;

    if (fstat(l->fd, &s) == 0 && !S_ISREG(s.st_mode))
        return TP_OK; /* a pipe or a terminal */
    if (ftruncate(l->fd, 0) != 0)
        return tp_fail_errno(err, "--log %s: cannot be emptied", l->path);
    return TP_OK;
}

/* Write what waits, as much as can be written. */
static tp_status write_waiting(struct train_log *l, struct tp_err *err)
{
    while (l->n_written < l->n_waiting) {
        ssize_t n = write(l->fd, l->waiting + l->n_written, l->n_waiting - l->n_written);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return tp_fail_errno(err, "--log %s: cannot be written", l->path);
        l->n_written += (size_t)n;
    }
    l->n_written = l->n_waiting = 0;
    return TP_OK;
}

/* The end of a file: its last bytes, of which `line` is the first after the last newline. */
struct log_end {
    char bytes[LINE_MAX_BYTES];
    int64_t size, n, line;
};

/* False: it cannot be read, as a log that only may be written; then it is left as it is. */
static bool read_end(struct log_end *e, const char *path)
{
    struct tp_err ignored;
    tp_status st;
    int fd;

    if (file_open_read(&fd, &e->size, path, &ignored))
        return false;
    e->n = e->size < LINE_MAX_BYTES ? e->size : LINE_MAX_BYTES;
    st = file_read_at(fd, path, e->size - e->n, e->bytes, (size_t)e->n, &ignored);
    close(fd);
    for (e->line = e->n; e->line > 0 && e->bytes[e->line - 1] != '\n';)
        e->line--;
    return !st;
}

/* Whether it ends with a part of a line of a log, be it short, and not with all but its newline. */
static bool ends_in_log_line(const struct log_end *e)
{
    int64_t n = e->n - e->line, whole = sizeof line_begin - 1;

    if ((e->line == 0 && e->size > e->n) || e->bytes[e->n - 1] == '}')
        return false;
    return memcmp(e->bytes + e->line, line_begin, (size_t)(n < whole ? n : whole)) == 0;
}

tp_status train_log_continue(const struct train_log *l, struct tp_err *err)
{
    struct log_end e;

    if (!read_end(&e, l->path) || e.line == e.n)
        return TP_OK;
    if (ends_in_log_line(&e))
        return ftruncate(l->fd, e.size - e.n + e.line) == 0
                   ? TP_OK
                   : tp_fail_errno(err, "--log %s: cannot be cut to whole lines", l->path);
    return write(l->fd, "\n", 1) == 1 ? TP_OK
                                      : tp_fail_errno(err, "--log %s: cannot be written", l->path);
}

/* The JSON line. Returns its length, which is at least `size` if it has no room. */
static size_t format_line(char *line, size_t size, const struct train_log_entry *e)
{
    char loss[NUMBER_MAX], norm[NUMBER_MAX], lr[NUMBER_MAX], seconds[NUMBER_MAX];
    char rate[NUMBER_MAX], save[NUMBER_MAX], cpu[NUMBER_MAX], wait[NUMBER_MAX], hidden[NUMBER_MAX];

    return (size_t)snprintf(
        line, size,
        "%s%lld, \"loss\": %s, \"grad_norm\": %s, \"lr\": %s, "
        "\"tokens\": %lld, \"seconds\": %s, \"tokens_per_s\": %s, \"save_seconds\": %s, "
        "\"cpu_seconds\": %s, \"comm_wait_seconds\": %s, \"comm_hidden_seconds\": %s, "
        "\"peak_rss_bytes\": %lld, \"layout\": \"%s\"}\n",
        line_begin, (long long)e->step, number(loss, e->loss), number(norm, e->grad_norm),
        number(lr, e->lr), (long long)e->tokens, number(seconds, e->seconds),
        number(rate, e->tokens_per_s), number(save, e->save_seconds), number(cpu, e->cpu_seconds),
        number(wait, e->comm_wait_seconds), number(hidden, e->comm_hidden_seconds),
        (long long)e->peak_rss_bytes, e->layout);
}

tp_status train_log_write(struct train_log *l, const struct train_log_entry *e, struct tp_err *err)
{
    size_t room = TRAIN_LOG_WAITING_MAX - l->n_waiting;
    size_t n = format_line(l->waiting + l->n_waiting, room, e);

    if (n < room)
        l->n_waiting += n;
    else
        l->lost++;
    return write_waiting(l, err);
}

int64_t train_log_flush(struct train_log *l, struct tp_err *err)
{
    int64_t lines = l->lost;

    write_waiting(l, err);
    for (size_t i = l->n_written; i < l->n_waiting; i++)
        lines += l->waiting[i] == '\n';
    return lines;
}

char *train_log_format(char buf[TRAIN_LOG_TEXT_MAX], const struct train_log_entry *e)
{
    char save[48] = "";

    if (e->save_seconds >= 0.0005)
        snprintf(save, sizeof save, "  save %.3f s", e->save_seconds);
    snprintf(buf, TRAIN_LOG_TEXT_MAX,
             "step %lld/%lld  loss %.6f  grad norm %.5f  lr %.3e  %.3f s  %.0f tokens/s%s",
             (long long)(e->step + 1), (long long)e->steps, e->loss, e->grad_norm, e->lr,
             e->seconds, e->tokens_per_s, save);
    return buf;
}
