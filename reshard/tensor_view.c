/* reshard/tensor_view.c - see reshard/tensor_view.h. */
#include "reshard/tensor_view.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/root.h"
#include "ckpt/tensor_reader.h"
#include "core/file.h"
#include "kernels/cast.h"
#include "kernels/copy.h"
#include "layout/model_config.h"
#include "layout/parallel_plan.h"

struct tensor_view {
    struct arena arena;
    char path[PATH_MAX];
    const struct tensor *tensors;
    int n;
    const struct tensor **sorted; /* by group and name */
    /* a checkpoint of this project */
    struct ckpt_found found;
    struct tensor_reader *reader;
    const char *head, *embedding; /* names, if the head is tied; otherwise NULL */
    /* or one of another framework */
    bool is_foreign;
    struct foreign_contents foreign;
    int *first; /* [n + 1] extents of tensor i: first[i] .. first[i + 1] - 1 */
    void *part; /* of part_bytes */
    size_t part_bytes;
};

/* ---- opening ---- */

static int by_name(const void *a, const void *b)
{
    const struct tensor *x = *(const struct tensor *const *)a,
                        *y = *(const struct tensor *const *)b;
    const int order = strcmp(x->group, y->group);

    return order ? order : strcmp(x->name, y->name);
}

static tp_status sort_tensors(struct tensor_view *v, struct tp_err *err)
{
    v->sorted = arena_array(&v->arena, (size_t)v->n + 1, sizeof *v->sorted);
    if (!v->sorted)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for a list of %d tensors", v->path, v->n);
    for (int i = 0; i < v->n; i++)
        v->sorted[i] = &v->tensors[i];
    qsort(v->sorted, (size_t)v->n, sizeof *v->sorted, by_name);
    return TP_OK;
}

/* Other frameworks store a tied head as a copy of the embedding. */
static void find_tied_head(struct tensor_view *v)
{
    const char *config = v->found.manifest.model_config;
    struct tp_err ignored = { 0 };
    struct model m;

    if (!config ||
        model_config_parse_any(&m, config, strlen(config), v->path, &v->arena, &ignored) ||
        m.family == MODEL_OF_RULES || !m.tied)
        return;
    v->head = parallel_plan_end_name(&m, ROLE_HEAD);
    v->embedding = parallel_plan_end_name(&m, ROLE_EMBEDDING);
}

static tp_status open_own(struct tensor_view *v, const char *path, int64_t step, struct tp_err *err)
{
    tp_status st = ckpt_open(&v->found, path, step, &v->arena, err);

    if (st)
        return st;
    snprintf(v->path, sizeof v->path, "%s", v->found.dir);
    v->tensors = v->found.manifest.layout.tensors;
    v->n = v->found.manifest.layout.n_tensors;
    find_tied_head(v);
    return tensor_reader_open(&v->reader, v->found.dir, &v->found.manifest, err);
}

static tp_status open_foreign(struct tensor_view *v, const struct foreign_contents_request *q,
                              struct tp_err *err)
{
    const struct reshard_endpoint *from;
    tp_status st;

    v->is_foreign = true;
    snprintf(v->path, sizeof v->path, "%s", q->path);
    TP_TRY(foreign_contents_open(&v->foreign, q, err));
    TP_TRY(foreign_contents_need_all(&v->foreign, err));
    v->tensors = v->foreign.tensors;
    v->n = v->foreign.n_tensors;
    v->first = arena_array(&v->arena, (size_t)v->n + 1, sizeof *v->first);
    if (!v->first) {
        st = tp_fail(err, TP_E_NOMEM, "%s: no memory for a list of %d tensors", v->path, v->n);
        goto done;
    }
    from = piece_source_endpoint(v->foreign.source);
    for (int i = 0; i < from->n_extents; i++) /* they come tensor by tensor */
        v->first[from->extents[i].tensor + 1] = i + 1;
done:
    return st;
}

tp_status tensor_view_open(struct tensor_view **out, const struct foreign_contents_request *q,
                           struct tp_err *err)
{
    struct foreign_contents_request found = *q;
    struct tensor_view *v = calloc(1, sizeof *v);
    tp_status st;

    if (!v)
        return tp_fail(err, TP_E_NOMEM, "no memory to open %s", q->path);
    st = foreign_contents_find(&found.format, q->path, q->step, err);
    if (!st)
        st = found.format ? open_foreign(v, &found, err) : open_own(v, q->path, q->step, err);
    if (!st)
        st = sort_tensors(v, err);
    if (st) {
        tensor_view_close(v);
        return st;
    }
    *out = v;
    return TP_OK;
}

void tensor_view_close(struct tensor_view *v)
{
    if (!v)
        return;
    tensor_reader_close(v->reader);
    if (v->is_foreign)
        foreign_contents_close(&v->foreign);
    free(v->part);
    arena_free(&v->arena);
    free(v);
}

const char *tensor_view_path(const struct tensor_view *v)
{
    return v->path;
}

const char *tensor_view_note(const struct tensor_view *v)
{
    return v->foreign.note ? v->foreign.note : v->found.note;
}

/* ---- tensors ---- */

int tensor_view_count(const struct tensor_view *v)
{
    return v->n;
}

const struct tensor *tensor_view_tensor(const struct tensor_view *v, int i)
{
    return &v->tensors[i];
}

int tensor_view_find(const struct tensor_view *v, const char *group, const char *name)
{
    const struct tensor key = { .group = group, .name = name }, *p = &key;
    const struct tensor **found = bsearch(&p, v->sorted, (size_t)v->n, sizeof *v->sorted, by_name);

    return found ? (int)(*found - v->tensors) : -1;
}

int tensor_view_find_like(const struct tensor_view *v, const struct tensor *t)
{
    const bool master = strcmp(t->group, GROUP_MASTER) == 0;
    int i = tensor_view_find(v, t->group, t->name);

    if (i < 0 && v->head && strcmp(t->name, v->head) == 0)
        i = tensor_view_find(v, t->group, v->embedding);
    if (i >= 0 || (!master && strcmp(t->group, GROUP_PARAM) != 0) || !dtype_is_float(t->dtype))
        return i;
    i = tensor_view_find(v, master ? GROUP_PARAM : GROUP_MASTER, t->name);
    return i >= 0 && (v->tensors[i].dtype == DTYPE_F32) ? i : -1;
}

/* ---- values ---- */

/* Room for a part of a box of `bytes` bytes. */
static tp_status need_part(struct tensor_view *v, size_t bytes, struct tp_err *err)
{
    void *grown = bytes > v->part_bytes ? realloc(v->part, bytes) : v->part;

    if (!grown)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory to read it", v->path);
    v->part = grown;
    if (bytes > v->part_bytes)
        v->part_bytes = bytes;
    return TP_OK;
}

static tp_status read_foreign(struct tensor_view *v, int i, const struct box *box, void *buf,
                              struct tp_err *err)
{
    const struct reshard_endpoint *from = piece_source_endpoint(v->foreign.source);
    const struct tensor *t = &v->tensors[i];
    const int elem = dtype_bytes(t->dtype);
    int64_t elements = 0;
    char text[BOX_TEXT_MAX];
    tp_status st;

    TP_TRY(need_part(v, (size_t)(box_elements(box) * elem), err));
    for (int k = v->first[i]; k < v->first[i + 1]; k++) {
        struct box common;

        if (!box_meet(&common, &from->extents[k].box, box))
            continue;
        TP_TRY(from->read(from->ctx, k, &common, v->part, err));
        copy_box(buf, box, v->part, &common, &common, elem);
        elements += box_elements(&common);
    }
    if (elements != box_elements(box))
        st = tp_fail(err, TP_E_CORRUPT, "%s: tensor %s/%s has %lld elements of %s, expected %lld",
                     v->path, t->group, t->name, (long long)elements, box_format(text, box),
                     (long long)box_elements(box));
done:
    return st;
}

tp_status tensor_view_read(struct tensor_view *v, int i, const struct box *box, void *buf,
                           struct tp_err *err)
{
    return v->is_foreign ? read_foreign(v, i, box, buf, err)
                         : tensor_reader_read(v->reader, i, box, buf, err);
}

tp_status tensor_view_read_as(struct tensor_view *v, int i, enum dtype dtype, const struct box *box,
                              void *buf, struct tp_err *err)
{
    const enum dtype stored = v->tensors[i].dtype;
    const int64_t n = box_elements(box), bytes = (n * dtype_bytes(dtype) + 7) / 8 * 8;
    unsigned char *from = stored == dtype ? buf : (unsigned char *)buf + bytes;
    tp_status st = tensor_view_read(v, i, box, from, err);

    if (!st && stored != dtype)
        cast(buf, dtype, from, stored, n);
    return st;
}

tp_status tensor_view_check(struct tensor_view *v, struct tp_err *err)
{
    const struct reshard_endpoint *from;

    if (!v->is_foreign)
        return TP_OK; /* each chunk was compared when it was read */
    from = piece_source_endpoint(v->foreign.source);
    return from->check(from->ctx, err);
}

/* ---- places ---- */

static bool contains(const struct box *b, const int64_t *at)
{
    for (int d = 0; d < b->ndim; d++)
        if (at[d] < b->lo[d] || at[d] >= b->lo[d] + b->len[d])
            return false;
    return true;
}

static void locate_foreign(struct tensor_view_place *out, const struct tensor_view *v, int i,
                           const int64_t *at)
{
    const struct piece_source *s = v->foreign.source;
    const struct tensor *t = &v->tensors[i];
    const struct piece_tensor all = piece_source_tensor(s, piece_source_find(s, t->group, t->name));

    for (int k = 0; k < all.n; k++)
        if (contains(&all.pieces[k].box, at))
            snprintf(out->file, sizeof out->file, "%s",
                     file_table_path(piece_source_files(v->foreign.source), all.pieces[k].file));
}

void tensor_view_locate(struct tensor_view_place *out, const struct tensor_view *v, int i,
                        const int64_t *at)
{
    const struct manifest *m = &v->found.manifest;
    struct tp_err err = { 0 };
    int shard;

    *out = (struct tensor_view_place){ .rank = -1 };
    if (v->is_foreign) {
        locate_foreign(out, v, i, at);
        return;
    }
    shard = tensor_reader_shard(v->reader, i, at);
    if (shard < 0 || file_join(out->file, v->path, m->shards[shard].file, &err))
        return;
    out->rank = m->shards[shard].rank;
}
