/* reshard/formats/safetensors/safetensors_target.c - writes safetensors; see
 * reshard/formats/safetensors/safetensors.h. */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/file.h"
#include "reshard/formats/safetensors/safetensors_header.h"

struct safetensors_target_file {
    int fd;
    char path[PATH_MAX];
};

struct safetensors_target {
    struct reshard_endpoint endpoint;
    struct arena arena;
    const char *dir;
    struct safetensors_entry *entries; /* [n] extent i is tensor i */
    int *file_of;                      /* [n] ascending */
    struct digest *digests;            /* [n] */
    pthread_mutex_t lock;              /* guards digests */
    int n;
    struct safetensors_target_file *files;
    int n_files;
};

static int64_t tensor_bytes(const struct safetensors_tensor *t)
{
    struct box whole = box_whole(t->ndim, t->shape);

    return box_elements(&whole) * dtype_bytes(t->dtype);
}

static tp_status target_write(void *ctx, int extent, const struct box *run, const void *buf,
                              struct tp_err *err)
{
    struct safetensors_target *t = ctx;
    const struct safetensors_entry *e = &t->entries[extent];
    const struct safetensors_target_file *file = &t->files[t->file_of[extent]];
    struct box whole = box_whole(e->tensor.ndim, e->tensor.shape);
    int elem = dtype_bytes(e->tensor.dtype);
    struct digest part = digest_box(buf, run, e->tensor.ndim, e->tensor.shape, elem);

    pthread_mutex_lock(&t->lock);
    digest_add(&t->digests[extent], &part);
    pthread_mutex_unlock(&t->lock);
    return file_write_at(file->fd, file->path, e->begin + box_offset_in(&whole, run) * elem, buf,
                         (size_t)(box_elements(run) * elem), err);
}

static struct digest target_digest(const void *ctx, int tensor)
{
    return ((const struct safetensors_target *)ctx)->digests[tensor];
}

/* Assign tensors to files of at most max_bytes of data. A larger tensor gets a file of its own. */
static void assign_files(struct safetensors_target *t, int64_t max_bytes)
{
    int64_t used = 0;

    t->n_files = 1;
    for (int i = 0; i < t->n; i++) {
        int64_t bytes = tensor_bytes(&t->entries[i].tensor);

        if (max_bytes > 0 && used > 0 && used + bytes > max_bytes) {
            t->n_files++;
            used = 0;
        }
        t->file_of[i] = t->n_files - 1;
        used += bytes;
    }
}

static tp_status allocate(struct safetensors_target *t, const char *dir,
                          const struct safetensors_tensor *tensors, int n, int64_t max_shard_bytes,
                          struct tp_err *err)
{
    struct reshard_extent *extents = arena_array(&t->arena, (size_t)n + 1, sizeof *extents);
    enum dtype *dtypes = arena_array(&t->arena, (size_t)n + 1, sizeof *dtypes);

    t->n = n;
    t->dir = arena_strdup(&t->arena, dir);
    t->entries = arena_array(&t->arena, (size_t)n + 1, sizeof *t->entries);
    t->file_of = arena_array(&t->arena, (size_t)n + 1, sizeof *t->file_of);
    t->digests = arena_array(&t->arena, (size_t)n + 1, sizeof *t->digests);
    if (!extents || !dtypes || !t->dir || !t->entries || !t->file_of || !t->digests)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for %d tensors", dir, n);
    for (int i = 0; i < n; i++) {
        t->entries[i].tensor = tensors[i];
        extents[i] = (struct reshard_extent){ i, box_whole(tensors[i].ndim, tensors[i].shape) };
        dtypes[i] = tensors[i].dtype;
    }
    assign_files(t, max_shard_bytes);
    t->files = arena_array(&t->arena, (size_t)t->n_files, sizeof *t->files);
    if (!t->files)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for %d files", dir, t->n_files);
    for (int i = 0; i < t->n_files; i++)
        t->files[i].fd = -1;
    t->endpoint = (struct reshard_endpoint){
        .name = t->dir,
        .n_extents = n,
        .extents = extents,
        .dtypes = dtypes,
        .ctx = t,
        .write = target_write,
        .digest = target_digest,
    };
    return TP_OK;
}

/* "model.safetensors", or "model-00002-of-00008.safetensors". */
static void file_name(char *buf, size_t size, int i, int n)
{
    if (n == 1)
        snprintf(buf, size, "model.safetensors");
    else
        snprintf(buf, size, "model-%05d-of-%05d.safetensors", i + 1, n);
}

/* Create file number i, whose tensors are `entries`, with its header and its final length. */
static tp_status create_file(struct safetensors_target *t, int i, struct safetensors_entry *entries,
                             int n, struct tp_err *err)
{
    struct safetensors_target_file *file = &t->files[i];
    char *header = NULL, name[64];
    int64_t header_bytes;
    tp_status st = safetensors_header_make(&header, &header_bytes, entries, n, err);

    if (st)
        return st;
    file_name(name, sizeof name, i, t->n_files);
    TP_TRY(file_join(file->path, t->dir, name, err));
    file->fd = open(file->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (file->fd < 0) {
        st = tp_fail_errno(err, "%s: cannot create", file->path);
        goto done;
    }
    TP_TRY(file_write_at(file->fd, file->path, 0, header, (size_t)header_bytes, err));
    if (ftruncate(file->fd, n > 0 ? entries[n - 1].end : header_bytes) != 0)
        st = tp_fail_errno(err, "%s: cannot set its length", file->path);
done:
    free(header);
    return st;
}

tp_status safetensors_create(struct safetensors_target **out, const char *dir,
                             const struct safetensors_tensor *tensors, int n_tensors,
                             int64_t max_shard_bytes, struct tp_err *err)
{
    struct safetensors_target *t = calloc(1, sizeof *t);
    tp_status st = TP_OK;

    if (!t)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its files", dir);
    pthread_mutex_init(&t->lock, NULL);
    TP_TRY(allocate(t, dir, tensors, n_tensors, max_shard_bytes, err));
    for (int i = 0, begin = 0; i < t->n_files; i++) {
        int end = begin;

        while (end < t->n && t->file_of[end] == i)
            end++;
        TP_TRY(create_file(t, i, t->entries + begin, end - begin, err));
        begin = end;
    }
    *out = t;
    t = NULL;
done:
    safetensors_target_close(t);
    return st;
}

const struct reshard_endpoint *safetensors_target_endpoint(const struct safetensors_target *t)
{
    return &t->endpoint;
}

int safetensors_target_files(const struct safetensors_target *t)
{
    return t->n_files;
}

static char *index_text(const struct safetensors_target *t)
{
    json_t *map = json_object(), *root;
    int64_t parameters = 0, bytes = 0;
    char *text;

    for (int i = 0; i < t->n; i++) {
        struct box whole = box_whole(t->entries[i].tensor.ndim, t->entries[i].tensor.shape);
        char name[64];

        parameters += box_elements(&whole);
        bytes += tensor_bytes(&t->entries[i].tensor);
        file_name(name, sizeof name, t->file_of[i], t->n_files);
        json_object_set_new(map, t->entries[i].tensor.name, json_string(name));
    }
    root = json_pack("{s:{s:I, s:I}, s:o}", "metadata", "total_parameters", (json_int_t)parameters,
                     "total_size", (json_int_t)bytes, "weight_map", map);
    text = root ? json_dumps(root, JSON_INDENT(2)) : NULL;
    json_decref(root);
    return text;
}

static tp_status write_index(const struct safetensors_target *t, struct tp_err *err)
{
    char path[PATH_MAX];
    char *text = index_text(t);
    tp_status st;

    if (!text)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", t->dir);
    st = file_join(path, t->dir, "model.safetensors.index.json", err);
    if (!st)
        st = file_write_new(path, text, strlen(text), err);
    free(text);
    return st;
}

tp_status safetensors_finish(struct safetensors_target *t, struct tp_err *err)
{
    for (int i = 0; i < t->n_files; i++) {
        struct safetensors_target_file *file = &t->files[i];
        int fd = file->fd;
        tp_status st = file_sync(fd, file->path, false, err);

        if (st)
            return st;
        file->fd = -1;
        if (close(fd) != 0)
            return tp_fail_errno(err, "%s: close failed", file->path);
    }
    return t->n_files > 1 ? write_index(t, err) : TP_OK;
}

void safetensors_target_close(struct safetensors_target *t)
{
    if (!t)
        return;
    for (int i = 0; t->files && i < t->n_files; i++)
        if (t->files[i].fd >= 0)
            close(t->files[i].fd);
    pthread_mutex_destroy(&t->lock);
    arena_free(&t->arena);
    free(t);
}

/* ---- as a format of tp-ckpt export ---- */

tp_status safetensors_export_create(struct export_writer *w, const struct export_contents *q,
                                    struct tp_err *err)
{
    struct safetensors_tensor *tensors = calloc((size_t)q->n + 1, sizeof *tensors);
    struct safetensors_target *target = NULL;
    tp_status st;

    if (!tensors)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for %d tensors", q->dir, q->n);
    for (int i = 0; i < q->n; i++) {
        const struct tensor *t = &q->tensors[i];

        tensors[i] = (struct safetensors_tensor){ t->name, t->dtype, t->ndim, { 0 } };
        memcpy(tensors[i].shape, t->shape, sizeof t->shape);
    }
    st = safetensors_create(&target, q->dir, tensors, q->n, q->max_shard_bytes, err);
    free(tensors);
    if (st)
        return st;
    *w = (struct export_writer){ .endpoint = safetensors_target_endpoint(target),
                                 .files = safetensors_target_files(target),
                                 .ctx = target };
    return TP_OK;
}

tp_status safetensors_export_finish(struct export_writer *w, struct tp_err *err)
{
    return safetensors_finish(w->ctx, err);
}

void safetensors_export_close(struct export_writer *w)
{
    safetensors_target_close(w->ctx);
}

/* ---- one small file ---- */

tp_status safetensors_write_file(const char *path, const struct safetensors_tensor *tensors,
                                 const void *const *data, int n, struct tp_err *err)
{
    struct safetensors_entry *entries = calloc((size_t)n + 1, sizeof *entries);
    char *header = NULL, *bytes = NULL;
    int64_t header_bytes, size;
    tp_status st = TP_OK;

    if (!entries)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for %d tensors", path, n);
    for (int i = 0; i < n; i++)
        entries[i].tensor = tensors[i];
    TP_TRY(safetensors_header_make(&header, &header_bytes, entries, n, err));
    size = n > 0 ? entries[n - 1].end : header_bytes;
    bytes = malloc((size_t)size);
    if (!bytes) {
        st = tp_fail(err, TP_E_NOMEM, "%s: no memory for %lld bytes", path, (long long)size);
        goto done;
    }
    memcpy(bytes, header, (size_t)header_bytes);
    for (int i = 0; i < n; i++)
        memcpy(bytes + entries[i].begin, data[i], (size_t)(entries[i].end - entries[i].begin));
    st = file_replace(path, bytes, (size_t)size, err);
done:
    free(bytes);
    free(header);
    free(entries);
    return st;
}
