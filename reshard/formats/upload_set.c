/* reshard/formats/upload_set.c - see reshard/formats/upload_set.h. */
#include "reshard/formats/upload_set.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/file.h"
#include "storage/upload.h"
#include "storage/upload_file.h"
#include "storage/upload_sender.h"

/* The tensors that a part of a file has bytes of: first .. last. */
struct upload_set_part {
    int first, last;
};

struct upload_set_file {
    char *path, *to; /* in the folder, and in the store */
    int64_t size, part_bytes;
    struct upload_set_part *parts; /* [n_parts] */
    int n_parts;
    struct upload_file *upload;
};

struct upload_set_tensor {
    int places;
    bool everywhere;
};

struct upload_set {
    const char *dir, *to;
    struct upload_set_file **files;
    int n, room;
    struct upload_set_tensor *tensors; /* [n_tensors] */
    int n_tensors;
};

static tp_status no_memory(const struct upload_set *s, struct tp_err *err)
{
    return tp_fail(err, TP_E_NOMEM, "%s: no memory for its list of files", s->to);
}

tp_status upload_set_new(struct upload_set **out, const char *dir, const char *to, int n_tensors,
                         struct tp_err *err)
{
    struct upload_set *s = calloc(1, sizeof *s);

    if (s)
        s->tensors = calloc((size_t)n_tensors + 1, sizeof *s->tensors);
    if (!s || !s->tensors) {
        free(s);
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its list of files", to);
    }
    s->dir = dir;
    s->to = to;
    s->n_tensors = n_tensors;
    *out = s;
    return TP_OK;
}

/* ---- files ---- */

static void free_file(struct upload_set_file *f)
{
    if (!f)
        return;
    upload_file_end(f->upload);
    free(f->path);
    free(f->to);
    free(f->parts);
    free(f);
}

static tp_status read_structure(void *ctx, int64_t offset, void *buf, int64_t n, struct tp_err *err)
{
    const struct upload_set_file *f = ctx;
    int64_t size;
    int fd = -1;
    tp_status st = file_open_read(&fd, &size, f->path, err);

    if (st)
        return st;
    st = file_read_at(fd, f->path, offset, buf, (size_t)n, err);
    close(fd);
    return st;
}

static tp_status measure(struct upload_set_file *f, struct tp_err *err)
{
    int fd = -1;
    tp_status st = file_open_read(&fd, &f->size, f->path, err);

    if (st)
        return st;
    close(fd);
    f->part_bytes = upload_part_bytes(f->size);
    f->n_parts = (int)(f->size / f->part_bytes) + 1;
    f->parts = calloc((size_t)f->n_parts, sizeof *f->parts);
    if (!f->parts)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its list of parts", f->to);
    for (int i = 0; i < f->n_parts; i++)
        f->parts[i] = (struct upload_set_part){ INT_MAX, -1 };
    return TP_OK;
}

static tp_status open_file(struct upload_set_file *f, struct tp_err *err)
{
    struct upload_file_request q = { .path = f->to, .structure = read_structure, .ctx = f };
    tp_status st = measure(f, err);

    q.size = f->size;
    return st ? st : upload_file_new(&f->upload, &q, err);
}

tp_status upload_set_add(struct upload_set *s, const char *path, struct tp_err *err)
{
    struct upload_set_file *f = calloc(1, sizeof *f);
    char to[PATH_MAX];
    tp_status st;

    if (s->n == s->room) {
        const int room = s->room ? 2 * s->room : 16;
        struct upload_set_file **grown = realloc((void *)s->files, (size_t)room * sizeof *s->files);

        if (grown) {
            s->files = grown;
            s->room = room;
        }
    }
    if (!f || s->n == s->room)
        TP_TRY(no_memory(s, err));
    TP_TRY(file_join(to, s->to, path + strlen(s->dir) + 1, err));
    f->path = strdup(path);
    f->to = strdup(to);
    TP_TRY(f->path && f->to ? open_file(f, err) : no_memory(s, err));
    s->files[s->n++] = f;
    f = NULL;
done:
    free_file(f);
    return st;
}

bool upload_set_has(const struct upload_set *s, const char *path)
{
    for (int i = 0; i < s->n; i++)
        if (strcmp(s->files[i]->path, path) == 0)
            return true;
    return false;
}

/* ---- what is expected ---- */

tp_status upload_set_expect(struct upload_set *s, int file, int64_t offset, int64_t n, int first,
                            int last, struct tp_err *err)
{
    struct upload_set_file *f = s->files[file];
    const int64_t end = n > 0 ? (offset + n - 1) / f->part_bytes + 1 : 0;

    if (offset < 0 || end > f->n_parts)
        return tp_fail(err, TP_E_INTERNAL, "%s: a tensor lies behind the end of the file", f->path);
    for (int64_t p = offset / f->part_bytes; p < end; p++) {
        if (first < f->parts[p].first)
            f->parts[p].first = first;
        if (last > f->parts[p].last)
            f->parts[p].last = last;
    }
    upload_file_expect(f->upload, offset, n);
    return TP_OK;
}

void upload_set_places(struct upload_set *s, int tensor, int n, bool everywhere)
{
    s->tensors[tensor].places += n;
    s->tensors[tensor].everywhere |= everywhere;
}

/* Bytes that are in memory: of parts with bytes of several tensors, where they begin and after
 * which tensor they end; and of parts with bytes of one tensor alone. */
struct upload_set_sums {
    int64_t change, own;
};

static void add_parts(struct upload_set_sums *sums, const struct upload_set_file *f)
{
    for (int p = 0; p < f->n_parts; p++) {
        const struct upload_set_part *x = &f->parts[p];
        const int64_t left = f->size - p * f->part_bytes;
        const int64_t bytes = left < f->part_bytes ? left : f->part_bytes;

        if (x->first == x->last) {
            sums[x->first].own += bytes;
        } else if (x->last >= 0) {
            sums[x->first].change += bytes;
            sums[x->last + 1].change -= bytes;
        }
    }
}

/* A part with bytes of several tensors is open from the first to the last of them. Of parts with
 * bytes of one tensor alone, each thread fills one in each place, and may begin the next one. */
tp_status upload_set_bytes(int64_t *out, const struct upload_set *s, int threads,
                           struct tp_err *err)
{
    struct upload_set_sums *sums = calloc((size_t)s->n_tensors + 1, sizeof *sums);
    int64_t most = 0, open = 0, part_bytes = UPLOAD_PART_BYTES_MIN;

    if (!sums)
        return no_memory(s, err);
    for (int i = 0; i < s->n; i++) {
        add_parts(sums, s->files[i]);
        if (s->files[i]->part_bytes > part_bytes)
            part_bytes = s->files[i]->part_bytes;
    }
    for (int i = 0; i < s->n_tensors; i++) {
        const int64_t filled = (threads + 1) * part_bytes * s->tensors[i].places;
        const bool all = s->tensors[i].everywhere || filled > sums[i].own;
        const int64_t here = all ? sums[i].own : filled;

        open += sums[i].change;
        most = open + here > most ? open + here : most;
    }
    free(sums);
    *out = most + upload_sender_usual() * part_bytes;
    return TP_OK;
}

/* ---- the work ---- */

tp_status upload_set_begin(struct upload_set *s, struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int i = 0; i < s->n && !st; i++)
        st = upload_file_begin(s->files[i]->upload, NULL, err);
    return st;
}

tp_status upload_set_write(struct upload_set *s, int file, int64_t offset, const void *data,
                           int64_t n, struct tp_err *err)
{
    return upload_file_write(s->files[file]->upload, offset, data, n, err);
}

tp_status upload_set_finish(struct upload_set *s, struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int i = 0; i < s->n && !st; i++)
        st = upload_file_finish(s->files[i]->upload, err);
    for (int i = 0; i < s->n && !st; i++)
        st = upload_file_wait(s->files[i]->upload, err);
    return st;
}

tp_status upload_set_appear(struct upload_set *s, struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int i = 0; i < s->n && !st; i++)
        st = upload_file_complete(s->files[i]->upload, err);
    return st;
}

void upload_set_remove(struct upload_set *s)
{
    for (int i = 0; i < s->n; i++)
        upload_file_remove(s->files[i]->upload);
}

void upload_set_free(struct upload_set *s)
{
    if (!s)
        return;
    for (int i = 0; i < s->n; i++)
        free_file(s->files[i]);
    free((void *)s->files);
    free(s->tensors);
    free(s);
}
