/* reshard/formats/safetensors/safetensors_target.c - writes safetensors; see
 * reshard/formats/safetensors/safetensors.h. */
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/file.h"
#include "reshard/formats/safetensors/safetensors_header.h"

/* Which tensors go to which files. */
struct safetensors_files_plan {
    const char *dir;
    const struct tensor *tensors;      /* of the target */
    const int *ids;                    /* [n] which of them; NULL: the first n */
    struct safetensors_entry *entries; /* [n] */
    int *file_of;                      /* [n] ascending */
    int n, n_files;
};

static int id_of(const struct safetensors_files_plan *p, int i)
{
    return p->ids ? p->ids[i] : i;
}

static int64_t tensor_bytes(const struct safetensors_tensor *t)
{
    struct box whole = box_whole(t->ndim, t->shape);

    return box_elements(&whole) * dtype_bytes(t->dtype);
}

/* Assign tensors to files of at most max_bytes of data. A larger tensor gets a file of its own. */
static void assign_files(struct safetensors_files_plan *p, int64_t max_bytes)
{
    int64_t used = 0;

    p->n_files = 1;
    for (int i = 0; i < p->n; i++) {
        const struct tensor *t = &p->tensors[id_of(p, i)];
        struct safetensors_tensor *entry = &p->entries[i].tensor;
        int64_t bytes;

        *entry = (struct safetensors_tensor){ t->name, t->dtype, t->ndim, { 0 } };
        memcpy(entry->shape, t->shape, sizeof t->shape);
        bytes = tensor_bytes(entry);
        if (max_bytes > 0 && used > 0 && used + bytes > max_bytes) {
            p->n_files++;
            used = 0;
        }
        p->file_of[i] = p->n_files - 1;
        used += bytes;
    }
}

/* "model.safetensors", or "model-00002-of-00008.safetensors". */
static void file_name(char *buf, size_t size, int i, int n)
{
    if (n == 1)
        snprintf(buf, size, "model.safetensors");
    else
        snprintf(buf, size, "model-%05d-of-%05d.safetensors", i + 1, n);
}

/* Write the header of a file whose tensors are `entries`, and set its length. */
static tp_status write_header(struct piece_target *t, int file, struct safetensors_entry *entries,
                              int n, struct tp_err *err)
{
    char *header = NULL;
    int64_t header_bytes;
    struct file_part part;
    tp_status st = safetensors_header_make(&header, &header_bytes, entries, n, err);

    if (st)
        return st;
    TP_TRY(piece_target_use(t, file, &part, err));
    st = file_write_at(part.object.fd, part.path, 0, header, (size_t)header_bytes, err);
    if (!st && ftruncate(part.object.fd, n > 0 ? entries[n - 1].end : header_bytes) != 0)
        st = tp_fail_errno(err, "%s: cannot set its length", part.path);
    piece_target_release(t, file);
done:
    free(header);
    return st;
}

tp_status safetensors_begin_file(struct piece_target *t, int file,
                                 const struct safetensors_tensor *tensors, int n, int64_t *begins,
                                 struct tp_err *err)
{
    struct safetensors_entry *entries =
        arena_array(piece_target_arena(t), (size_t)n + 1, sizeof *entries);
    tp_status st;

    if (!entries)
        return tp_fail(err, TP_E_NOMEM, "no memory for a file of %d tensors", n);
    for (int i = 0; i < n; i++)
        entries[i].tensor = tensors[i];
    st = write_header(t, file, entries, n, err);
    for (int i = 0; i < n; i++)
        begins[i] = entries[i].begin;
    return st;
}

/* File number i has tensors first .. end - 1. */
static tp_status add_file(struct piece_target *t, struct safetensors_files_plan *p, int i,
                          int first, int end, struct tp_err *err)
{
    char name[64];
    int file;
    tp_status st;

    file_name(name, sizeof name, i, p->n_files);
    TP_TRY(piece_target_file(t, &file, name, err));
    TP_TRY(write_header(t, file, p->entries + first, end - first, err));
    for (int k = first; k < end; k++) {
        const struct safetensors_entry *e = &p->entries[k];
        const struct piece_place place = { .tensor = id_of(p, k),
                                           .box = box_whole(e->tensor.ndim, e->tensor.shape),
                                           .file = file,
                                           .begin = e->begin };

        TP_TRY(piece_target_add(t, &place, err));
    }
done:
    return st;
}

static char *index_text(const struct safetensors_files_plan *p)
{
    json_t *map = json_object(), *root;
    int64_t parameters = 0, bytes = 0;
    char *text;

    for (int i = 0; i < p->n; i++) {
        const struct safetensors_tensor *t = &p->entries[i].tensor;
        struct box whole = box_whole(t->ndim, t->shape);
        char name[64];

        parameters += box_elements(&whole);
        bytes += tensor_bytes(t);
        file_name(name, sizeof name, p->file_of[i], p->n_files);
        json_object_set_new(map, t->name, json_string(name));
    }
    root = json_pack("{s:{s:I, s:I}, s:o}", "metadata", "total_parameters", (json_int_t)parameters,
                     "total_size", (json_int_t)bytes, "weight_map", map);
    text = root ? json_dumps(root, JSON_INDENT(2)) : NULL;
    json_decref(root);
    return text;
}

static tp_status write_index(const struct safetensors_files_plan *p, struct tp_err *err)
{
    char path[PATH_MAX];
    char *text = index_text(p);
    tp_status st;

    if (!text)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", p->dir);
    st = file_join(path, p->dir, "model.safetensors.index.json", err);
    if (!st)
        st = file_write_new(path, text, strlen(text), err);
    free(text);
    return st;
}

static tp_status write_files(struct piece_target *t, struct safetensors_files_plan *p,
                             struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int i = 0, first = 0; i < p->n_files; i++) {
        int end = first;

        while (end < p->n && p->file_of[end] == i)
            end++;
        TP_TRY(add_file(t, p, i, first, end, err));
        first = end;
    }
    if (p->n_files > 1)
        st = write_index(p, err);
done:
    return st;
}

tp_status safetensors_add_files(struct piece_target *t, const char *dir,
                                const struct tensor *tensors, const int *ids, int n,
                                int64_t max_shard_bytes, struct tp_err *err)
{
    struct safetensors_files_plan p = { .dir = dir, .tensors = tensors, .ids = ids, .n = n };

    p.entries = arena_array(piece_target_arena(t), (size_t)n + 1, sizeof *p.entries);
    p.file_of = arena_array(piece_target_arena(t), (size_t)n + 1, sizeof *p.file_of);
    if (!p.entries || !p.file_of)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for %d tensors", dir, n);
    assign_files(&p, max_shard_bytes);
    return write_files(t, &p, err);
}

tp_status safetensors_create(struct piece_target **out, const char *dir,
                             const struct tensor *tensors, int n, int64_t max_shard_bytes,
                             struct tp_err *err)
{
    struct piece_target *t = NULL;
    tp_status st;

    TP_TRY(piece_target_new(&t, dir, tensors, n, err));
    TP_TRY(safetensors_add_files(t, dir, tensors, NULL, n, max_shard_bytes, err));
    TP_TRY(piece_target_plan(t, err));
    *out = t;
    t = NULL;
done:
    piece_target_close(t);
    return st;
}

/* ---- as a format of tp-ckpt export ---- */

tp_status safetensors_export_create(struct export_writer *w, const struct export_contents *q,
                                    struct tp_err *err)
{
    struct piece_target *t = NULL;
    tp_status st = safetensors_create(&t, q->dir, q->tensors, q->n, q->max_shard_bytes, err);

    if (!st)
        *w = piece_target_writer(t);
    return st;
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
