/* reshard/formats/safetensors/safetensors_source.c - reads safetensors; see
 * reshard/formats/safetensors/safetensors.h. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/file.h"
#include "core/text.h"
#include "reshard/engine/tensor_digests.h"
#include "reshard/formats/pieces/file_table.h"
#include "reshard/formats/safetensors/quantized.h"
#include "reshard/formats/safetensors/safetensors_index.h"
#include "storage/location.h"
#include "storage/remote_object.h"

/* An entry of one of the files. */
struct safetensors_found {
    struct safetensors_entry entry;
    int file;
    const struct quantized *quantized; /* how it is stored; its tensor is what it is read as. NULL:
                                          it is stored as its tensor says */
};

struct safetensors_source {
    struct reshard_endpoint endpoint;
    struct arena arena;
    const char *path;
    struct file_table *files;
    struct safetensors_found *found; /* sorted by name */
    int n_found;
    const struct safetensors_found **selected; /* [endpoint.n_extents] */
    struct tensor_digests digests;             /* extent i is all of tensor i */
};

static tp_status no_memory(const struct safetensors_source *s, struct tp_err *err)
{
    return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", s->path);
}

/* Of a run that is stored as it is read. */
static struct file_table_range bytes_of(const struct safetensors_source *s,
                                        const struct safetensors_found *f, const struct box *run)
{
    const struct box whole = box_whole(f->entry.tensor.ndim, f->entry.tensor.shape);
    const int elem = dtype_bytes(f->entry.tensor.dtype);

    return (struct file_table_range){ s->files, f->file,
                                      f->entry.begin + box_offset_in(&whole, run) * elem,
                                      box_elements(run) * elem };
}

static tp_status source_read_undigested(void *ctx, int extent, const struct box *run, void *buf,
                                        struct tp_err *err)
{
    const struct safetensors_source *s = ctx;
    const struct safetensors_found *f = s->selected[extent];
    const struct file_table_range b = bytes_of(s, f, run);

    return f->quantized ? quantized_read(f->quantized, run, buf, err)
                        : file_table_range_read(&b, 0, buf, b.size, err);
}

static void source_will_read(void *ctx, int extent, const struct box *run)
{
    const struct safetensors_source *s = ctx;
    const struct safetensors_found *f = s->selected[extent];
    const struct file_table_range b = bytes_of(s, f, run);

    if (f->quantized)
        quantized_will_read(f->quantized, run);
    else
        file_table_range_will_read(&b);
}

static void source_add_digest(void *ctx, int tensor, const struct digest *part)
{
    tensor_digests_add(&((struct safetensors_source *)ctx)->digests, tensor, part);
}

static tp_status source_read(void *ctx, int extent, const struct box *run, void *buf,
                             struct tp_err *err)
{
    const struct safetensors_source *s = ctx;
    const struct safetensors_tensor *t = &s->selected[extent]->entry.tensor;
    struct digest part;
    tp_status st = source_read_undigested(ctx, extent, run, buf, err);

    if (st)
        return st;
    part = digest_box(buf, run, t->ndim, t->shape, dtype_bytes(t->dtype));
    source_add_digest(ctx, extent, &part);
    return TP_OK;
}

static tp_status source_combine(void *ctx, struct comm_control *control, struct tp_err *err)
{
    return tensor_digests_combine(&((struct safetensors_source *)ctx)->digests, control, err);
}

static struct digest source_digest(const void *ctx, int tensor)
{
    return tensor_digests_of(&((const struct safetensors_source *)ctx)->digests, tensor);
}

static int source_sums(const void *ctx, struct reshard_sums *sums)
{
    if (sums)
        *sums = tensor_digests_words(&((const struct safetensors_source *)ctx)->digests);
    return 1;
}

static const struct reshard_resumable source_resumable = { .sums = source_sums };

/* ---- opening ---- */

/* Append the tensors of a file to s->found, in file order. */
static tp_status read_file(struct safetensors_source *s, int file, struct tp_err *err)
{
    struct safetensors_entry *entries;
    struct safetensors_header_file header;
    struct file_part part;
    void *grown;
    int n;
    tp_status st = file_table_use(s->files, file, &part, err);

    if (st)
        return st;
    header = (struct safetensors_header_file){ part.object, part.size, part.path };
    TP_TRY(safetensors_header_read(&entries, &n, &header, &s->arena, err));
    grown = realloc(s->found, (size_t)(s->n_found + n + 1) * sizeof *s->found);
    if (!grown) {
        st = no_memory(s, err);
        goto done;
    }
    s->found = grown;
    for (int i = 0; i < n; i++)
        s->found[s->n_found++] = (struct safetensors_found){ entries[i], file, NULL };
done:
    file_table_release(s->files, file);
    return st;
}

static tp_status add_indexed(struct safetensors_source *s, const char *index, struct tp_err *err)
{
    struct arena arena = { 0 };
    struct safetensors_files files = { .n = 0 };
    tp_status st;

    TP_TRY(safetensors_index_read(&files, index, &arena, err));
    for (int i = 0, file; i < files.n; i++) {
        char path[PATH_MAX];

        TP_TRY(file_join(path, s->path, files.names[i], err));
        TP_TRY(file_table_add(s->files, &file, path, err));
    }
    for (int i = 0; i < files.n; i++)
        TP_TRY(read_file(s, i, err));
done:
    arena_free(&arena);
    return st;
}

/* Whether a path is a folder; a remote one is, unless it is named like a file. */
static bool is_folder(const char *path)
{
    return location_is_remote(path) ? !text_ends_with(path, ".safetensors") : file_is_dir(path);
}

static tp_status add_files(struct safetensors_source *s, struct tp_err *err)
{
    char one[PATH_MAX], index[PATH_MAX];
    const bool is_dir = is_folder(s->path);
    bool is_one, is_indexed;
    int file;
    tp_status st;

    TP_TRY(file_join(one, s->path, "model.safetensors", err));
    TP_TRY(file_join(index, s->path, "model.safetensors.index.json", err));
    TP_TRY(object_exists(&is_one, is_dir ? one : s->path, err));
    if (!is_dir && !is_one)
        return tp_fail(err, TP_E_NOTFOUND, "%s: no such file or folder", s->path);
    TP_TRY(object_exists(&is_indexed, index, err));
    if (is_dir && !is_one && is_indexed)
        return add_indexed(s, index, err);
    if (is_dir && !is_one)
        return tp_fail(err, TP_E_NOTFOUND,
                       "%s: contains neither model.safetensors nor model.safetensors.index.json",
                       s->path);
    TP_TRY(file_table_add(s->files, &file, is_dir ? one : s->path, err));
    st = read_file(s, file, err);
done:
    return st;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct safetensors_found *)a)->entry.tensor.name,
                  ((const struct safetensors_found *)b)->entry.tensor.name);
}

/* Sort by name. TP_E_CORRUPT: a name occurs twice. */
static tp_status sort_found(struct safetensors_source *s, struct tp_err *err)
{
    if (s->n_found > 0)
        qsort(s->found, (size_t)s->n_found, sizeof *s->found, by_name);
    for (int i = 1; i < s->n_found; i++)
        if (by_name(&s->found[i - 1], &s->found[i]) == 0)
            return tp_fail(err, TP_E_CORRUPT, "%s: tensor %s occurs twice, in %s and in %s",
                           s->path, s->found[i].entry.tensor.name,
                           file_table_path(s->files, s->found[i - 1].file),
                           file_table_path(s->files, s->found[i].file));
    return TP_OK;
}

tp_status safetensors_open(struct safetensors_source **out, const char *path, struct tp_err *err)
{
    struct safetensors_source *s = calloc(1, sizeof *s);
    tp_status st = TP_OK;

    if (!s)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", path);
    tensor_digests_init(&s->digests);
    s->path = arena_strdup(&s->arena, path);
    s->files = file_table_new();
    if (!s->path || !s->files) {
        st = tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", path);
        goto done;
    }
    TP_TRY(add_files(s, err));
    TP_TRY(sort_found(s, err));
    *out = s;
    s = NULL;
done:
    safetensors_source_close(s);
    return st;
}

int safetensors_count(const struct safetensors_source *s)
{
    return s->n_found;
}

const char *safetensors_name(const struct safetensors_source *s, int i)
{
    return s->found[i].entry.tensor.name;
}

const struct safetensors_tensor *safetensors_tensor_at(const struct safetensors_source *s, int i)
{
    return &s->found[i].entry.tensor;
}

const char *safetensors_path(const struct safetensors_source *s)
{
    return s->path;
}

int safetensors_files(const struct safetensors_source *s)
{
    return file_table_count(s->files);
}

const char *safetensors_file(const struct safetensors_source *s, int file)
{
    return file_table_path(s->files, file);
}

int safetensors_place(const struct safetensors_source *s, int i, int64_t *begin)
{
    *begin = s->found[i].entry.begin;
    return s->found[i].file;
}

const struct quantized *safetensors_quantized(const struct safetensors_source *s, int i)
{
    return s->found[i].quantized;
}

/* ---- selecting ---- */

static const struct safetensors_found *find(const struct safetensors_source *s, const char *name)
{
    struct safetensors_found key = { .entry.tensor.name = name };

    return s->n_found ? bsearch(&key, s->found, (size_t)s->n_found, sizeof key, by_name) : NULL;
}

/* GPT-2 as first published has tensor names without the prefix of the model. transformers reads
 * both forms, and so does this. */
static const struct safetensors_found *find_with_prefix(const struct safetensors_source *s,
                                                        const char *name)
{
    static const char prefix[] = "transformer.";
    const struct safetensors_found *f = find(s, name);

    if (!f && strncmp(name, prefix, sizeof prefix - 1) == 0)
        f = find(s, name + sizeof prefix - 1);
    return f;
}

/* ---- quantized weights ---- */

/* The scales of a tensor; NULL: it has none. */
static const struct safetensors_found *find_scales(const struct safetensors_source *s,
                                                   const struct safetensors_entry *e,
                                                   struct arena *arena)
{
    const enum quantized_form form = quantized_form_of(e);
    const struct safetensors_found *f = NULL;
    const char *name;

    for (int i = 0; !f && (name = quantized_scales_name(form, e->tensor.name, i, arena)); i++)
        f = find(s, name);
    return f;
}

static struct file_table_range all_bytes(const struct safetensors_source *s,
                                         const struct safetensors_found *f)
{
    return (struct file_table_range){ s->files, f->file, f->entry.begin,
                                      f->entry.end - f->entry.begin };
}

static tp_status dequantize(struct safetensors_source *s, struct safetensors_found *f,
                            const struct safetensors_found *scales, struct tp_err *err)
{
    struct quantized *q = arena_array(&s->arena, 1, sizeof *q);
    const struct file_table_range elements = all_bytes(s, f), scale_bytes = all_bytes(s, scales);
    tp_status st;

    if (!q)
        return no_memory(s, err);
    TP_TRY(quantized_make(q, &f->entry, &elements, &scales->entry, &scale_bytes, &s->arena, err));
    f->quantized = q;
done:
    return st;
}

/* Remove the tensors that are scales of others, and give these the names of weights. */
static tp_status replace_quantized(struct safetensors_source *s, const bool *are_scales,
                                   struct tp_err *err)
{
    int kept = 0;

    for (int i = 0; i < s->n_found; i++) {
        struct safetensors_found *f = &s->found[i];

        if (f->quantized)
            f->entry.tensor = f->quantized->weight;
        if (!are_scales[i])
            s->found[kept++] = *f;
    }
    s->n_found = kept;
    return sort_found(s, err);
}

const char *safetensors_dequantized_note(char note[DEQUANTIZED_NOTE_MAX], int n)
{
    snprintf(note, DEQUANTIZED_NOTE_MAX,
             "%d quantized weight%s read as bf16, and config.json without quantization_config", n,
             n == 1 ? " is" : "s are");
    return note;
}

tp_status safetensors_dequantize(struct safetensors_source *s, int *n, struct tp_err *err)
{
    bool *are_scales = calloc((size_t)s->n_found + 1, sizeof *are_scales);
    struct arena names = { 0 };
    int found = 0;
    tp_status st = TP_OK;

    if (!are_scales)
        return no_memory(s, err);
    for (int i = 0; i < s->n_found; i++) {
        const struct safetensors_found *scales = find_scales(s, &s->found[i].entry, &names);

        if (!scales)
            continue;
        TP_TRY(dequantize(s, &s->found[i], scales, err));
        are_scales[scales - s->found] = true;
        found++;
    }
    if (found > 0)
        TP_TRY(replace_quantized(s, are_scales, err));
    if (n)
        *n = found;
done:
    arena_free(&names);
    free(are_scales);
    return st;
}

/* ---- what was found, as tensors of the transfer ---- */

static tp_status match(const struct safetensors_found **out, const struct safetensors_source *s,
                       const struct reshard_tensor *want, struct tp_err *err)
{
    const struct safetensors_found *f = find_with_prefix(s, want->name);
    char want_text[BOX_TEXT_MAX], found_text[BOX_TEXT_MAX];
    struct box want_box = box_whole(want->ndim, want->shape), found_box;

    if (!f)
        return tp_fail(err, TP_E_CORRUPT,
                       "%s: tensor %s is missing, which the model of config.json has", s->path,
                       want->name);
    found_box = box_whole(f->entry.tensor.ndim, f->entry.tensor.shape);
    if (!box_equal(&want_box, &found_box))
        return tp_fail(err, TP_E_CORRUPT,
                       "%s: tensor %s is %s, but the model of config.json has %s", s->path,
                       want->name,
                       box_format_shape(found_text, sizeof found_text, f->entry.tensor.ndim,
                                        f->entry.tensor.shape),
                       box_format_shape(want_text, sizeof want_text, want->ndim, want->shape));
    if (f->entry.tensor.dtype == DTYPE_COUNT)
        return tp_fail(err, TP_E_CORRUPT,
                       "%s: tensor %s has a dtype that is not supported; supported are F32, BF16, "
                       "F16, F64, I64, I32 and U8",
                       s->path, want->name);
    *out = f;
    return TP_OK;
}

tp_status safetensors_select(struct safetensors_source *s, const struct reshard_tensor *tensors,
                             int n_tensors, struct tp_err *err)
{
    size_t n = (size_t)n_tensors + 1;
    struct reshard_extent *extents = arena_array(&s->arena, n, sizeof *extents);
    enum dtype *dtypes = arena_array(&s->arena, n, sizeof *dtypes);
    tp_status st = TP_OK;

    s->selected = arena_array(&s->arena, n, sizeof *s->selected);
    if (!extents || !dtypes || !s->selected ||
        !tensor_digests_make(&s->digests, n_tensors, &s->arena))
        return no_memory(s, err);
    for (int i = 0; i < n_tensors; i++) {
        TP_TRY(match(&s->selected[i], s, &tensors[i], err));
        extents[i] = (struct reshard_extent){ i, box_whole(tensors[i].ndim, tensors[i].shape) };
        dtypes[i] = s->selected[i]->entry.tensor.dtype;
    }
    s->endpoint = (struct reshard_endpoint){
        .name = s->path,
        .n_extents = n_tensors,
        .extents = extents,
        .dtypes = dtypes,
        .ctx = s,
        .read = source_read,
        .read_undigested = source_read_undigested,
        .read_uncounted = source_read_undigested,
        .add_digest = source_add_digest,
        .resumable = &source_resumable,
        .combine = source_combine,
        .digest = source_digest,
    };
    if (location_is_remote(s->path)) {
        s->endpoint.will_read = source_will_read;
        s->endpoint.ahead_bytes = remote_object_ahead_bytes();
    }
    s->endpoint.any_order = !location_is_remote(s->path);
done:
    return st;
}

const struct reshard_endpoint *safetensors_source_endpoint(const struct safetensors_source *s)
{
    return &s->endpoint;
}

void safetensors_source_close(struct safetensors_source *s)
{
    if (!s)
        return;
    file_table_free(s->files);
    free(s->found);
    tensor_digests_end(&s->digests);
    arena_free(&s->arena);
    free(s);
}
