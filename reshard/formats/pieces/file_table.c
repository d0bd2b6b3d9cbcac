/* reshard/formats/pieces/file_table.c - see reshard/formats/pieces/file_table.h. */
#include "reshard/formats/pieces/file_table.h"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/file.h"
#include "core/thread_pool.h"
#include "storage/missing_files.h"

enum { OPEN_FILES = 128, OPEN_FILES_MIN = 8 };

struct file_entry {
    char *path;
    struct object object;
    bool open;
    int users;
    bool changed; /* it was used, perhaps to write, since the last sync; then it is open */
    int64_t size;
};

struct file_table {
    struct file_entry *files;
    int n, room, n_open;
    int most_open;
    bool writable;
    uint32_t chance; /* decides where the search for a file to close begins */
    pthread_mutex_t lock;
};

/* 1/part of the files that this process may open. Tensors that are cut among thousands of ranks are
 * read and written rank by rank, one tensor after the other: with fewer open files than ranks, a
 * file would be opened, or synced, again for each of its pieces. */
static int most_open(rlim_t part)
{
    struct rlimit limit;
    rlim_t n = OPEN_FILES;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
        n = limit.rlim_cur / part;
    return n < OPEN_FILES_MIN ? OPEN_FILES_MIN : n < INT_MAX ? (int)n : INT_MAX;
}

static struct file_table *new_table(bool writable, rlim_t part)
{
    struct file_table *t = calloc(1, sizeof *t);

    if (t) {
        pthread_mutex_init(&t->lock, NULL);
        t->writable = writable;
        t->most_open = most_open(part);
    }
    return t;
}

/* A source that quantized weights are read from has a table besides that of its pieces. All
 * together, five sixths are open; the rest is for everything else. */
struct file_table *file_table_new(void)
{
    return new_table(false, 6);
}

struct file_table *file_table_new_writable(void)
{
    return new_table(true, 2);
}

void file_table_free(struct file_table *t)
{
    if (!t)
        return;
    for (int i = 0; i < t->n; i++) {
        object_close(&t->files[i].object);
        free(t->files[i].path);
    }
    pthread_mutex_destroy(&t->lock);
    free(t->files);
    free(t);
}

tp_status file_table_add(struct file_table *t, int *number, const char *path, struct tp_err *err)
{
    char *copy = strdup(path);

    if (copy && t->n == t->room) {
        int room = t->room ? 2 * t->room : 16;
        void *grown = realloc(t->files, (size_t)room * sizeof *t->files);

        if (grown) {
            t->files = grown;
            t->room = room;
        }
    }
    if (!copy || t->n == t->room) {
        free(copy);
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its place in the list of files", path);
    }
    memset(&t->files[t->n], 0, sizeof *t->files);
    t->files[t->n].path = copy;
    t->files[t->n].object = OBJECT_NONE;
    *number = t->n++;
    return TP_OK;
}

int file_table_count(const struct file_table *t)
{
    return t->n;
}

const char *file_table_path(const struct file_table *t, int number)
{
    return t->files[number].path;
}

/* fsync a file that is open, if it was used since the last time. */
static tp_status sync_one(struct file_entry *f, struct tp_err *err)
{
    const tp_status st = f->changed ? file_sync(f->object.fd, f->path, false, err) : TP_OK;

    if (!st)
        f->changed = false;
    return st;
}

/* A thread_pool_fn. */
static tp_status sync_item(void *files, int64_t item, int worker, struct tp_err *err)
{
    struct file_entry *f = (struct file_entry *)files + item;

    (void)worker;
    return f->users ? TP_OK : sync_one(f, err);
}

tp_status file_table_sync(struct file_table *t, struct tp_err *err)
{
    /* Begin to write the pages of all files, so that the fsync of each finds little to do. It is
     * only a hint: a failure shows in the fsync.
     *
     * One syncfs is not faster than fsyncs that wait together. It waits for the files of all
     * programs, and fails for theirs. On overlay file systems it does not report that bytes could
     * not be written, and on FUSE it does not ask the server to sync. */
    for (int i = 0; i < t->n; i++)
        if (t->files[i].changed)
            (void)sync_file_range(t->files[i].object.fd, 0, 0, SYNC_FILE_RANGE_WRITE);
    return thread_pool_run(sync_item, t->files, t->n, FILE_SYNC_THREADS, err);
}

/* Close files that are not in use, until fewer than `most` are open. The first one is any: readers
 * go through the files of all ranks again and again, so the file that was used first is the one
 * that is needed next. */
static void close_unused(struct file_table *t, int most)
{
    int next;

    t->chance = t->chance * 1664525 + 1013904223; /* Numerical Recipes' generator */
    next = (int)((uint64_t)t->chance * (uint64_t)t->n >> 32);
    for (int i = 0; i < t->n && t->n_open >= most; i++) {
        struct file_entry *f = &t->files[next];

        next = (next + 1) % t->n;
        if (!f->open || f->users > 0)
            continue;
        object_close(&f->object);
        f->open = false;
        t->n_open--;
    }
}

/* Before another file is opened: close some when many are open. Files that were written are synced
 * first: once a file is closed, the system may forget that its bytes could not be written. That is
 * done for all at once, because a file system commits together what waits for it, while each of
 * thousands of small files, one after the other, would wait for a commit of its own. */
static tp_status make_room(struct file_table *t, struct tp_err *err)
{
    tp_status st = TP_OK;

    if (t->n_open < t->most_open)
        return TP_OK;
    if (t->writable)
        st = file_table_sync(t, err);
    if (!st)
        close_unused(t, t->writable ? 1 : t->most_open);
    return st;
}

/* Open a file of a folder that this process alone writes. */
static tp_status open_new(struct file_entry *f, struct tp_err *err)
{
    f->object.fd = open(f->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    return f->object.fd < 0 ? tp_fail_errno(err, "%s: cannot create", f->path) : TP_OK;
}

/* A file to read was not found: say which others of the table are missing too. */
static tp_status fail_missing(const struct file_table *t, struct tp_err *err)
{
    const char **paths = calloc((size_t)t->n + 1, sizeof *paths);
    tp_status st;

    for (int i = 0; paths && i < t->n; i++)
        paths[i] = t->files[i].path;
    st = missing_files_fail(err, paths, paths ? t->n : 0);
    free(paths);
    return st;
}

tp_status file_table_use(struct file_table *t, int number, struct file_part *part,
                         struct tp_err *err)
{
    struct file_entry *f = &t->files[number];
    tp_status st = TP_OK;

    pthread_mutex_lock(&t->lock);
    if (!f->open) {
        st = make_room(t, err);
        if (!st)
            st = t->writable ? open_new(f, err)
                             : object_open_any(&f->object, &f->size, f->path, err);
        if (st == TP_E_NOTFOUND)
            st = fail_missing(t, err);
        f->open = !st;
        t->n_open += f->open;
    }
    if (!st) {
        f->users++;
        f->changed = t->writable;
        *part = (struct file_part){ f->object, f->path, 0, f->size };
    }
    pthread_mutex_unlock(&t->lock);
    return st;
}

void file_table_release(struct file_table *t, int number)
{
    pthread_mutex_lock(&t->lock);
    t->files[number].users--;
    pthread_mutex_unlock(&t->lock);
}

tp_status file_table_read(struct file_table *t, int number, int64_t at, void *buf, int64_t n,
                          struct tp_err *err)
{
    struct file_part part;
    tp_status st = file_table_use(t, number, &part, err);

    if (st)
        return st;
    st = file_part_read(&part, at, buf, n, err);
    file_table_release(t, number);
    return st;
}

tp_status file_table_range_read(const struct file_table_range *r, int64_t at, void *buf, int64_t n,
                                struct tp_err *err)
{
    struct file_part part;
    tp_status st = file_table_use(r->files, r->file, &part, err);

    if (st)
        return st;
    part.begin = r->begin;
    part.size = r->size;
    st = file_part_read(&part, at, buf, n, err);
    file_table_release(r->files, r->file);
    return st;
}

void file_table_range_will_read(const struct file_table_range *r)
{
    struct file_part part;
    struct tp_err ignored;

    if (file_table_use(r->files, r->file, &part, &ignored))
        return;
    object_will_read(&part.object, r->begin, r->size);
    file_table_release(r->files, r->file);
}
