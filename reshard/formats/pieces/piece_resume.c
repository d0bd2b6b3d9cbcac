/* reshard/formats/pieces/piece_resume.c - see reshard/formats/pieces/piece_resume.h. */
#include "reshard/formats/pieces/piece_resume.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/file.h"

enum { ZERO_BYTES = 64 << 10, SPREAD_BYTES = 8 << 10 };

/* ---- what is recorded ---- */

static int target_sums(const void *ctx, struct reshard_sums *sums)
{
    const struct piece_target *t = ctx;

    if (sums) {
        sums[0] = tensor_digests_words(&t->digests);
        sums[1] = (struct reshard_sums){ t->parts, t->n_sums };
    }
    return 2;
}

static tp_status target_layout_sha256(const void *ctx, char sha256[SHA256_TEXT], struct tp_err *err)
{
    const struct piece_target *t = ctx;
    const size_t top = strlen(t->dir);
    struct sha256 *h;
    tp_status st = sha256_new(&h, err);

    if (st)
        return st;
    for (int i = 0; i < t->n_files; i++) {
        const char *name = file_table_path(t->files, i) + top;

        sha256_add(h, name, strlen(name) + 1);
    }
    for (int i = 0; i < t->n_places; i++) {
        const struct piece_place *p = &t->places[i];
        const int64_t numbers[] = { p->tensor, p->file, p->begin, p->row_bytes, p->sum };

        sha256_add(h, numbers, sizeof numbers);
        if (p->transposed)
            sha256_add(h, "transposed", sizeof "transposed");
        sha256_add(h, p->box.lo, (size_t)p->box.ndim * sizeof *p->box.lo);
        sha256_add(h, p->box.len, (size_t)p->box.ndim * sizeof *p->box.len);
    }
    sha256_end(h, sha256);
    return TP_OK;
}

static tp_status target_sync(const void *ctx, struct tp_err *err)
{
    return file_table_sync(((const struct piece_target *)ctx)->files, err);
}

/* ---- reading back ---- */

static tp_status target_suspect(void *ctx, struct tp_err *err)
{
    struct piece_target *t = ctx;
    const size_t n = (size_t)t->n_tensors + 1;

    t->suspect = arena_array(&t->arena, n, sizeof *t->suspect);
    t->unlike = arena_array(&t->arena, n, sizeof *t->unlike);
    t->back = arena_array(&t->arena, n, sizeof *t->back);
    if (!t->suspect || !t->unlike || !t->back)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory to read it back", t->dir);
    memset(t->suspect, true, n * sizeof *t->suspect);
    return TP_OK;
}

bool piece_resume_suspects(const void *ctx, int extent, const struct box *run)
{
    const struct piece_target *t = ctx;

    (void)run;
    return t->suspect && t->suspect[t->endpoint.extents[extent].tensor];
}

/* Read a span, and spread it over the buffer. */
static tp_status read_span(const struct file_part *part, const struct piece_span *s, int elem,
                           char *buf, struct tp_err *err)
{
    char room[SPREAD_BYTES];
    tp_status st = TP_OK;

    if (s->stride == 1)
        return file_read_at(part->object.fd, part->path, s->at, buf + s->first * elem,
                            (size_t)(s->n * elem), err);
    for (int64_t i = 0; i < s->n && !st;) {
        const int64_t left = s->n - i, n = left < SPREAD_BYTES / elem ? left : SPREAD_BYTES / elem;

        st = file_read_at(part->object.fd, part->path, s->at + i * elem, room, (size_t)(n * elem),
                          err);
        for (int64_t k = 0; k < n; k++)
            memcpy(buf + (s->first + (i + k) * s->stride) * elem, room + k * elem, (size_t)elem);
        i += n;
    }
    return st;
}

static tp_status read_place(const struct piece_target *t, const struct piece_place *p,
                            const struct box *run, char *buf, struct tp_err *err)
{
    const int elem = dtype_bytes(t->tensors[p->tensor].dtype);
    struct file_part part;
    tp_status st = file_table_use(t->files, p->file, &part, err);

    if (st)
        return st;
    for (int64_t i = 0; i < piece_place_spans(p, run) && !st; i++) {
        const struct piece_span s = piece_place_span(p, run, i, elem);

        st = read_span(&part, &s, elem, buf, err);
    }
    file_table_release(t->files, p->file);
    return st;
}

/* All places must have the same bytes. So the sum of the digests of the first ones proves them
 * all. */
tp_status piece_resume_read(void *ctx, int extent, const struct box *run, void *buf,
                            struct tp_err *err)
{
    struct piece_target *t = ctx;
    const int number = t->endpoint.extents[extent].tensor;
    const struct tensor *tensor = &t->tensors[number];
    struct digest first = { { 0 } };
    bool unlike = false;

    for (int i = t->first[extent]; i < t->first[extent + 1]; i++) {
        struct digest found;
        tp_status st = read_place(t, &t->places[i], run, buf, err);

        if (st)
            return st;
        found = digest_box(buf, run, tensor->ndim, tensor->shape, dtype_bytes(tensor->dtype));
        if (i == t->first[extent])
            first = found;
        else
            unlike |= memcmp(found.d, first.d, sizeof first.d) != 0;
    }
    pthread_mutex_lock(&t->lock);
    digest_add(&t->back[number], &first);
    t->unlike[number] |= unlike;
    pthread_mutex_unlock(&t->lock);
    return TP_OK;
}

static int64_t target_compare(void *ctx)
{
    struct piece_target *t = ctx;
    int64_t left = 0;

    for (int i = 0; i < t->n_tensors; i++) {
        const struct digest written = tensor_digests_of(&t->digests, i);

        t->suspect[i] = t->suspect[i] &&
                        (t->unlike[i] || memcmp(t->back[i].d, written.d, sizeof written.d) != 0);
        left += t->suspect[i];
        t->unlike[i] = false;
        t->back[i] = (struct digest){ { 0 } };
    }
    return left;
}

static void target_trust(void *ctx)
{
    ((struct piece_target *)ctx)->suspect = NULL;
}

const struct reshard_resumable piece_resumable = {
    .sums = target_sums,
    .layout_sha256 = target_layout_sha256,
    .sync = target_sync,
    .suspect = target_suspect,
    .compare = target_compare,
    .trust = target_trust,
};

/* ---- keeping the bytes of tensors ---- */

/* Bytes of a file that are kept: those of a tensor. */
struct kept_range {
    const char *name; /* of the file, in the target's folder */
    int64_t begin, end;
};

static int by_name_and_begin(const void *a, const void *b)
{
    const struct kept_range *x = a, *y = b;
    int order = strcmp(x->name, y->name);

    return order ? order : (x->begin > y->begin) - (x->begin < y->begin);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct kept_range *)a)->name, ((const struct kept_range *)b)->name);
}

static tp_status list_ranges(struct kept_range **out, int *n, const struct piece_target *t,
                             const char *journal, struct tp_err *err)
{
    const size_t top = strlen(t->dir) + 1;
    struct kept_range *list = calloc((size_t)t->n_places + 1, sizeof *list);

    if (!list)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for a list of its files", t->dir);
    for (int i = 0; i < t->n_places; i++) {
        const struct piece_place *p = &t->places[i];

        list[i].name = file_table_path(t->files, p->file) + top;
        list[i].begin = p->begin;
        list[i].end = piece_place_end(p, dtype_bytes(t->tensors[p->tensor].dtype));
    }
    list[t->n_places].name = journal;
    *n = t->n_places + 1;
    qsort(list, (size_t)*n, sizeof *list, by_name_and_begin);
    *out = list;
    return TP_OK;
}

static tp_status write_zeros(int fd, const char *path, int64_t from, int64_t to, struct tp_err *err)
{
    static const char zeros[ZERO_BYTES];
    tp_status st = TP_OK;

    while (from < to && !st) {
        const int64_t n = to - from < ZERO_BYTES ? to - from : ZERO_BYTES;

        st = file_write_at(fd, path, from, zeros, (size_t)n, err);
        from += n;
    }
    return st;
}

/* Keep the ranges r .. r + n - 1 of a file, and make zero what is between them. */
static tp_status clear_file(const char *path, const struct kept_range *r, int n, struct tp_err *err)
{
    int64_t end = 0;
    tp_status st = TP_OK;
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);

    if (fd < 0 && errno == ENOENT)
        return TP_OK; /* it is found to be missing when it is read back */
    if (fd < 0)
        return tp_fail_errno(err, "%s: cannot open", path);
    for (int i = 0; i < n && !st; i++) {
        st = write_zeros(fd, path, end, r[i].begin, err);
        end = r[i].end > end ? r[i].end : end;
    }
    if (!st && ftruncate(fd, end) != 0)
        st = tp_fail_errno(err, "%s: cannot set its length", path);
    close(fd);
    return st;
}

/* Remove the files of a folder and of the folders in it, except those of the list, and the folders
 * that are empty then. `name` is the folder's in the target's; "": it is the target's. */
static tp_status remove_others(int dir, const char *name, const struct kept_range *list, int n,
                               struct tp_err *err);

static tp_status remove_other(int dir, const char *name, const char *entry,
                              const struct kept_range *list, int n, struct tp_err *err)
{
    char path[PATH_MAX];
    const struct kept_range key = { path, 0, 0 };
    int fd;
    tp_status st;

    if (snprintf(path, sizeof path, "%s%s%s", name, *name ? "/" : "", entry) >= (int)sizeof path)
        return tp_fail(err, TP_E_CORRUPT, "%.100s...: has a path that is too long", name);
    fd = openat(dir, entry, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        if (bsearch(&key, list, (size_t)n, sizeof *list, by_name) || unlinkat(dir, entry, 0) == 0)
            return TP_OK;
        return tp_fail_errno(err, "%s: cannot remove", path);
    }
    st = remove_others(fd, path, list, n, err);
    close(fd);
    if (!st && unlinkat(dir, entry, AT_REMOVEDIR) != 0 && errno != ENOTEMPTY && errno != EEXIST)
        st = tp_fail_errno(err, "%s: cannot remove", path);
    return st;
}

static tp_status remove_others(int dir, const char *name, const struct kept_range *list, int n,
                               struct tp_err *err)
{
    const int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    const struct dirent *e;
    tp_status st = TP_OK;

    if (!d) {
        if (fd >= 0)
            close(fd);
        return tp_fail_errno(err, "%s: cannot be read", name);
    }
    while (!st && (e = readdir(d)))
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            st = remove_other(dir, name, e->d_name, list, n, err);
    closedir(d);
    return st;
}

tp_status piece_resume_keep(const struct piece_target *t, const char *dir, const char *journal,
                            struct tp_err *err)
{
    struct kept_range *list = NULL;
    char path[PATH_MAX];
    int n = 0, fd = -1;
    tp_status st;

    TP_TRY(list_ranges(&list, &n, t, journal, err));
    for (int i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && strcmp(list[end].name, list[i].name) == 0; end++)
            ;
        TP_TRY(file_join(path, dir, list[i].name, err));
        if (strcmp(list[i].name, journal) != 0)
            TP_TRY(clear_file(path, list + i, end - i, err));
    }
    fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    st = fd < 0 ? tp_fail_errno(err, "%s: cannot open", dir) : remove_others(fd, "", list, n, err);
done:
    if (fd >= 0)
        close(fd);
    free(list);
    return st;
}
