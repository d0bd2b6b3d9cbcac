/* reshard/transfer_journal.c - see reshard/transfer_journal.h. */
#include "reshard/transfer_journal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/file.h"
#include "reshard/record_log.h"

/*
 * The file is a record log whose first record is the head: the bytes of struct
 * transfer_journal_head, padding zero. The payload of each other record is the number of completed
 * tiles, then runs of words: number of the first word (counted through all arrays), how many, the
 * words.
 */
enum { KIND_HEAD = 0x31747074, KIND_RECORD = 0x72747074, GAP = 2 };

struct transfer_journal {
    struct record_log file;
    int dir;                         /* descriptor of the directory */
    const struct reshard_sums *sums; /* borrowed */
    int n_sums;
    int64_t n_words, n_tiles, done;
    uint64_t *last; /* [n_words] as of the last record */
};

/* ---- the head ---- */

static tp_status open_dir(struct transfer_journal *j, const char *dir, struct tp_err *err)
{
    j->dir = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return j->dir >= 0 ? TP_OK : tp_fail_errno(err, "%s: cannot open", dir);
}

static tp_status open_existing(struct transfer_journal *j, int64_t *size, const char *dir,
                               int flags, struct tp_err *err)
{
    struct stat sb;
    tp_status st = file_join(j->file.path, dir, TRANSFER_JOURNAL_FILE, err);

    if (st)
        return st;
    j->file.fd = open(j->file.path, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (j->file.fd < 0 && errno == ENOENT)
        return tp_fail(err, TP_E_NOTFOUND, "%s: no such file", j->file.path);
    if (j->file.fd < 0 || fstat(j->file.fd, &sb) != 0)
        return tp_fail_errno(err, "%s: cannot open", j->file.path);
    if (!S_ISREG(sb.st_mode))
        return tp_fail(err, TP_E_CORRUPT, "%s: is not a regular file", j->file.path);
    *size = sb.st_size;
    return TP_OK;
}

static tp_status read_head(struct transfer_journal_head *head, struct transfer_journal *j,
                           int64_t size, struct tp_err *err)
{
    unsigned char *buf = NULL;
    uint64_t bytes = 0;
    tp_status st = record_log_read(&buf, &bytes, &j->file, KIND_HEAD, size, err);

    if (st)
        return st;
    if (bytes == sizeof *head)
        memcpy(head, buf + RECORD_HEAD, sizeof *head);
    else
        st = tp_fail(err, TP_E_CORRUPT, "%s: was written by another version", j->file.path);
    free(buf);
    return st;
}

tp_status transfer_journal_peek(struct transfer_journal_head *head, const char *dir,
                                struct tp_err *err)
{
    struct transfer_journal j = { .file.fd = -1, .dir = -1 };
    int64_t size = 0;
    tp_status st = open_existing(&j, &size, dir, O_RDONLY, err);

    if (!st)
        st = read_head(head, &j, size, err);
    if (j.file.fd >= 0)
        close(j.file.fd);
    return st;
}

static tp_status journal_new(struct transfer_journal **out,
                             const struct transfer_journal_subject *s, struct tp_err *err)
{
    struct transfer_journal *j = calloc(1, sizeof *j);

    if (!j)
        return tp_fail(err, TP_E_NOMEM, "no memory for a journal");
    j->file.fd = j->dir = -1;
    j->sums = s->sums;
    j->n_sums = s->n_sums;
    j->n_tiles = s->head->n_tiles;
    for (int i = 0; i < s->n_sums; i++)
        j->n_words += s->sums[i].n;
    j->last = calloc((size_t)j->n_words + 1, sizeof *j->last);
    if (!j->last) {
        tp_fail(err, TP_E_NOMEM, "no memory for a journal of %lld words", (long long)j->n_words);
        transfer_journal_close(j);
        return TP_E_NOMEM;
    }
    *out = j;
    return TP_OK;
}

/* Give the journal its name, now that its head is on disk: a journal exists completely or not at
 * all. */
static tp_status publish(struct transfer_journal *j, const char *dir, struct tp_err *err)
{
    if (renameat(j->dir, TRANSFER_JOURNAL_FILE ".tmp", j->dir, TRANSFER_JOURNAL_FILE) != 0)
        return tp_fail_errno(err, "%s: cannot rename " TRANSFER_JOURNAL_FILE ".tmp to it",
                             j->file.path);
    return file_sync_dir(dir, err); /* for the names of the journal and of the shards */
}

tp_status transfer_journal_create(struct transfer_journal **out,
                                  const struct transfer_journal_subject *s, struct tp_err *err)
{
    const int flags = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
    unsigned char buf[RECORD_HEAD + sizeof *s->head + RECORD_TAIL] = { 0 };
    struct transfer_journal_head head;
    struct transfer_journal *j = NULL;
    tp_status st;

    TP_TRY(journal_new(&j, s, err));
    TP_TRY(file_join(j->file.path, s->dir, TRANSFER_JOURNAL_FILE, err));
    TP_TRY(open_dir(j, s->dir, err));
    j->file.fd = openat(j->dir, TRANSFER_JOURNAL_FILE ".tmp", flags, 0666);
    if (j->file.fd < 0) {
        st = tp_fail_errno(err, "%s.tmp: cannot create", j->file.path);
        goto done;
    }
    memcpy(&head, s->head, sizeof head);
    head.n_words = j->n_words;
    memcpy(buf + RECORD_HEAD, &head, sizeof head);
    TP_TRY(record_log_append(&j->file, KIND_HEAD, buf, sizeof head, err));
    TP_TRY(publish(j, s->dir, err));
    *out = j;
    j = NULL;
done:
    transfer_journal_close(j);
    return st;
}

/* ---- records ---- */

/* Whether a record's runs lie within the words, and its tiles continue those of the last record. */
static bool record_fits(const struct transfer_journal *j, const unsigned char *at, uint64_t bytes)
{
    const unsigned char *end = at + bytes;
    uint64_t run[2];
    int64_t done;

    if (bytes < sizeof done)
        return false;
    memcpy(&done, at, sizeof done);
    if (done < j->done || done > j->n_tiles)
        return false;
    for (at += sizeof done; at < end; at += run[1] * sizeof(uint64_t)) {
        if ((size_t)(end - at) < sizeof run)
            return false;
        memcpy(run, at, sizeof run);
        at += sizeof run;
        if (run[0] > (uint64_t)j->n_words || run[1] > (uint64_t)j->n_words - run[0] ||
            run[1] > (uint64_t)(end - at) / sizeof(uint64_t))
            return false;
    }
    return true;
}

static void apply_record(struct transfer_journal *j, const unsigned char *at, uint64_t bytes)
{
    const unsigned char *end = at + bytes;
    uint64_t run[2];

    memcpy(&j->done, at, sizeof j->done);
    for (at += sizeof j->done; at < end; at += run[1] * sizeof(uint64_t)) {
        memcpy(run, at, sizeof run);
        at += sizeof run;
        memcpy(j->last + run[0], at, run[1] * sizeof(uint64_t));
    }
}

/* Apply all good records. */
static tp_status read_records(struct transfer_journal *j, int64_t size, struct tp_err *err)
{
    struct tp_err why = { 0 };

    for (;;) {
        int64_t at = j->file.end;
        uint32_t crc = j->file.crc;
        unsigned char *buf = NULL;
        uint64_t bytes = 0;
        tp_status st = record_log_read(&buf, &bytes, &j->file, KIND_RECORD, size, &why);
        bool fits = !st && record_fits(j, buf + RECORD_HEAD, bytes);

        if (fits)
            apply_record(j, buf + RECORD_HEAD, bytes);
        free(buf);
        if (fits)
            continue;
        j->file.end = at; /* what follows is not part of the journal */
        j->file.crc = crc;
        if (!st || st == TP_E_CORRUPT)
            return TP_OK;
        *err = why;
        return st;
    }
}

static bool same_head(const struct transfer_journal_head *a, const struct transfer_journal_head *b)
{
    return strncmp(a->identity_sha256, b->identity_sha256, SHA256_TEXT) == 0 &&
           strncmp(a->layout_sha256, b->layout_sha256, SHA256_TEXT) == 0 &&
           a->thread_bytes == b->thread_bytes && a->n_tiles == b->n_tiles;
}

void transfer_journal_restore(const struct transfer_journal *j)
{
    int64_t at = 0;

    for (int i = 0; i < j->n_sums; at += j->sums[i++].n)
        if (j->sums[i].n > 0)
            memcpy(j->sums[i].words, j->last + at, (size_t)j->sums[i].n * sizeof(uint64_t));
}

tp_status transfer_journal_resume(struct transfer_journal **out, int64_t *done,
                                  const struct transfer_journal_subject *s, struct tp_err *err)
{
    struct transfer_journal_head found;
    struct transfer_journal *j = NULL;
    int64_t size = 0;
    tp_status st;

    TP_TRY(journal_new(&j, s, err));
    TP_TRY(open_dir(j, s->dir, err));
    TP_TRY(open_existing(j, &size, s->dir, O_RDWR, err));
    TP_TRY(read_head(&found, j, size, err));
    if (!same_head(&found, s->head) || found.n_words != j->n_words) {
        st = tp_fail(err, TP_E_CORRUPT, "%s: is about another transfer", j->file.path);
        goto done;
    }
    TP_TRY(read_records(j, size, err));
    if (ftruncate(j->file.fd, j->file.end) != 0) {
        st = tp_fail_errno(err, "%s: cannot truncate", j->file.path);
        goto done;
    }
    transfer_journal_restore(j);
    *done = j->done;
    *out = j;
    j = NULL;
done:
    transfer_journal_close(j);
    return st;
}

/* The runs of words that differ from the last record; runs up to GAP words apart are joined. With
 * `to` they are written there, and `last` is updated. Returns their size in bytes. */
static size_t put_changes(struct transfer_journal *j, unsigned char *to)
{
    size_t bytes = 0;
    int64_t base = 0;

    for (int s = 0; s < j->n_sums; base += j->sums[s++].n) {
        const uint64_t *now = j->sums[s].words;
        uint64_t *last = j->last + base;
        int64_t n = j->sums[s].n;

        for (int64_t i = 0, end; i < n; i = end) {
            end = i + 1;
            if (now[i] == last[i])
                continue;
            for (int64_t k = end; k < n && k <= end + GAP; k++)
                if (now[k] != last[k])
                    end = k + 1;
            if (to) {
                const uint64_t run[2] = { (uint64_t)(base + i), (uint64_t)(end - i) };

                memcpy(to + bytes, run, sizeof run);
                memcpy(to + bytes + sizeof run, now + i, (size_t)(end - i) * sizeof *now);
                memcpy(last + i, now + i, (size_t)(end - i) * sizeof *now);
            }
            bytes += 2 * sizeof(uint64_t) + (size_t)(end - i) * sizeof *now;
        }
    }
    return bytes;
}

tp_status transfer_journal_append(struct transfer_journal *j, int64_t done, struct tp_err *err)
{
    size_t bytes = sizeof done + put_changes(j, NULL);
    unsigned char *buf = malloc(RECORD_HEAD + bytes + RECORD_TAIL);
    tp_status st;

    if (!buf)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for a record of %zu bytes", j->file.path,
                       bytes);
    memcpy(buf + RECORD_HEAD, &done, sizeof done);
    put_changes(j, buf + RECORD_HEAD + sizeof done);
    st = record_log_append(&j->file, KIND_RECORD, buf, bytes, err);
    free(buf);
    if (!st)
        j->done = done;
    return st;
}

void transfer_journal_close(struct transfer_journal *j)
{
    if (!j)
        return;
    if (j->file.fd >= 0)
        close(j->file.fd);
    if (j->dir >= 0)
        close(j->dir);
    free(j->last);
    free(j);
}
