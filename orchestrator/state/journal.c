/* orchestrator/state/journal.c - see orchestrator/state/journal.h. */
#include "orchestrator/state/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <isa-l.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "core/arena.h"
#include "core/clock.h"
#include "core/file.h"
#include "core/private_dir.h"
#include "core/process_stat.h"

enum { JOURNAL_MAX = 256 << 20, RENEW_AT = 4 << 20, FRAME = 20 }; /* "%08x %010zu " */

/* For how long a lock of a tp-run that has ended may be kept. */
enum { LOCK_S = 5, LOCK_PAUSE_NS = 10 * 1000 * 1000 };

struct journal {
    int dir, fd, lock;
    int64_t size;
    int64_t records;
    bool failed;
    char state[PATH_MAX], path[PATH_MAX]; /* path: of the journal, for messages */
};

static const char NAME[] = "journal", OLD[] = "journal.old", NEW[] = "journal.new", LOCK[] = "lock";

static unsigned frame_crc(const char *text, size_t n)
{
    return crc32_iscsi((unsigned char *)text, (int)n, 0);
}

/* Parse the record at the beginning of text. Returns its length with the newline; 0: it is
 * not a good record. */
static size_t read_record(json_t **record, const char *text, size_t size)
{
    const char *json = text + FRAME;
    char *end;
    unsigned long crc;
    size_t n;

    *record = NULL;
    if (size <= FRAME)
        return 0;
    crc = strtoul(text, &end, 16);
    n = end == text + 8 ? strtoul(end, &end, 10) : SIZE_MAX;
    if (end != text + FRAME - 1 || n >= size - FRAME || json[n] != '\n' ||
        frame_crc(json, n) != crc)
        return 0;
    *record = json_loadb(json, n, JSON_REJECT_DUPLICATES, NULL);
    return *record ? FRAME + n + 1 : 0;
}

/* *last gets the last good record. Returns the length up to its end. Damage before it is skipped,
 * because an older record would not have the attempt that runs. */
static size_t scan(const char *text, size_t size, json_t **last, int64_t *records)
{
    size_t good = 0, at = 0;

    *records = 0;
    while (at < size) {
        json_t *record;
        size_t n = read_record(&record, text + at, size - at);
        const char *newline = n ? NULL : memchr(text + at, '\n', size - at);

        if (n == 0 && !newline)
            break;
        at = n ? at + n : (size_t)(newline - text) + 1;
        if (n == 0)
            continue;
        json_decref(*last);
        *last = record;
        good = at;
        ++*records;
    }
    if (*last && json_integer_value(json_object_get(*last, "n")) > *records)
        *records = json_integer_value(json_object_get(*last, "n"));
    return good;
}

static tp_status read_last(json_t **last, size_t *good, int64_t *records, int dir,
                           const char *state, struct tp_err *err)
{
    struct arena arena = { 0 };
    char *text;
    size_t size;
    tp_status st = private_dir_read(&text, &size, dir, state, NAME, JOURNAL_MAX, &arena, err);

    if (st == TP_OK)
        *good = scan(text, size, last, records);
    arena_free(&arena);
    return st;
}

/* Whether the process that the lock names is there. A tp-run that was killed while it started a
 * program has left a process that keeps the lock until it executes that. */
static bool is_alive(const char *pid)
{
    struct process_stat stat;

    return process_stat_read(&stat, (pid_t)strtol(pid, NULL, 10)) && stat.state != 'Z' &&
           stat.state != 'X';
}

static tp_status take_lock(struct journal *j, const char *state, struct tp_err *err)
{
    const struct timespec pause = { .tv_nsec = LOCK_PAUSE_NS };
    const double until = clock_seconds() + LOCK_S;
    char pid[32] = "";
    ssize_t n;
    tp_status st = private_dir_file(&j->lock, j->dir, state, LOCK, O_RDWR | O_CREAT, err);

    if (st)
        return st;
    while (flock(j->lock, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK)
            return tp_fail_errno(err, "%s/lock: cannot lock", state);
        n = pread(j->lock, pid, sizeof pid - 1, 0);
        pid[n > 0 ? n : 0] = 0;
        if (is_alive(pid) || clock_seconds() > until)
            return tp_fail(err, TP_E_EXISTS,
                           "%s: another tp-run (pid %s) runs this job; see tp-run status", state,
                           pid[0] ? pid : "unknown");
        nanosleep(&pause, NULL);
    }
    n = snprintf(pid, sizeof pid, "%d", (int)getpid());
    if (ftruncate(j->lock, 0) != 0 || pwrite(j->lock, pid, (size_t)n, 0) != n)
        return tp_fail_errno(err, "%s/lock: cannot write", state);
    return TP_OK;
}

tp_status journal_open(struct journal **out, json_t **last, const char *state, struct tp_err *err)
{
    struct journal *j = calloc(1, sizeof *j);
    size_t good = 0;
    tp_status st;

    *last = NULL;
    if (!j)
        return tp_fail(err, TP_E_NOMEM, "no memory for the journal");
    j->dir = j->fd = j->lock = -1;
    snprintf(j->state, sizeof j->state, "%s", state);
    snprintf(j->path, sizeof j->path, "%s/journal", state);
    TP_TRY(private_dir_ensure(&j->dir, state, err));
    TP_TRY(take_lock(j, state, err));
    st = read_last(last, &good, &j->records, j->dir, state, err);
    if (st && st != TP_E_NOTFOUND)
        goto done;
    TP_TRY(private_dir_file(&j->fd, j->dir, state, NAME, O_RDWR | O_CREAT, err));
    if (ftruncate(j->fd, (off_t)good) != 0)
        TP_TRY(tp_fail_errno(err, "%s/journal: cannot cut off its torn end", state));
    j->size = (int64_t)good;
    TP_TRY(file_sync(j->dir, state, false, err));
    *out = j;
    j = NULL;
done:
    if (st) {
        json_decref(*last);
        *last = NULL;
    }
    journal_close(j);
    return st;
}

/* Begin a new journal with the last record, because a long journal takes long to read. The old file
 * stays as journal.old. If this fails, the journal only grows. */
static void renew(struct journal *j, const char *frame, size_t n)
{
    struct tp_err ignored;
    int fd;

    if (private_dir_file(&fd, j->dir, j->state, NEW, O_RDWR | O_CREAT | O_TRUNC, &ignored))
        return;
    if (file_write_at(fd, NEW, 0, frame, n, &ignored) || file_sync(fd, NEW, true, &ignored))
        goto failed;
    unlinkat(j->dir, OLD, 0);
    if (linkat(j->dir, NAME, j->dir, OLD, 0) != 0) /* no links on this file system: only history
                                                      is lost */
        errno = 0;
    if (renameat(j->dir, NEW, j->dir, NAME) != 0)
        goto failed;
    file_sync(j->dir, j->state, false, &ignored);
    close(j->fd);
    j->fd = fd;
    j->size = (int64_t)n;
    return;
failed:
    close(fd);
    unlinkat(j->dir, NEW, 0);
}

tp_status journal_append(struct journal *j, json_t *record, struct tp_err *err)
{
    char *text = NULL, *frame = NULL;
    size_t n;
    tp_status st = TP_OK;

    json_object_set_new(record, "n", json_integer(j->records + 1));
    text = json_dumps(record, JSON_COMPACT | JSON_PRESERVE_ORDER);
    n = text ? strlen(text) : 0;
    frame = malloc(n + FRAME + 16);
    if (!text || !frame)
        TP_TRY(tp_fail(err, TP_E_NOMEM, "no memory for a journal record"));
    snprintf(frame, FRAME + 15, "%08x %010u ", frame_crc(text, n), (unsigned)n);
    memcpy(frame + FRAME, text, n);
    frame[FRAME + n] = '\n';
    TP_TRY(file_write_at(j->fd, j->path, j->size, frame, FRAME + n + 1, err));
    TP_TRY(file_sync(j->fd, j->path, true, err));
    j->size += (int64_t)(FRAME + n + 1);
    j->records++;
    if (j->size > RENEW_AT)
        renew(j, frame, FRAME + n + 1);
done:
    free(text);
    free(frame);
    json_decref(record);
    return st;
}

bool journal_has_failed(const struct journal *j)
{
    return j->failed;
}

void journal_set_failed(struct journal *j, bool failed)
{
    j->failed = failed;
}

void journal_close(struct journal *j)
{
    if (!j)
        return;
    if (j->fd >= 0)
        close(j->fd);
    if (j->lock >= 0)
        close(j->lock);
    if (j->dir >= 0)
        close(j->dir);
    free(j);
}

tp_status journal_peek(json_t **last, const char *state, struct tp_err *err)
{
    size_t good = 0;
    int64_t records;
    int dir;
    tp_status st;

    *last = NULL;
    if ((st = private_dir_open(&dir, state, err)))
        return st;
    st = read_last(last, &good, &records, dir, state, err);
    if (st == TP_OK && !*last)
        st = tp_fail(err, TP_E_NOTFOUND, "%s/journal: no record", state);
    close(dir);
    return st;
}

const json_t *journal_run_record(const json_t *record)
{
    const json_t *run = json_object_get(record, "record");

    return run ? run : json_object_get(record, "book"); /* its name in earlier versions */
}
