/* reshard/foreign_contents.c - see reshard/foreign_contents.h. */
#include "reshard/foreign_contents.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/manifest.h"
#include "ckpt/root.h"
#include "ckpt/step.h"
#include "core/file.h"
#include "layout/family.h"
#include "reshard/engine/extent_index.h"
#include "reshard/formats/foreign_adapter.h"
#include "reshard/formats/foreign_model.h"
#include "reshard/formats/foreign_place.h"
#include "reshard/memory_budget.h"
#include "storage/location.h"
#include "storage/object.h"
#include "storage/remote_object.h"

enum { RUN_BYTES = 1 << 20, LATER_BYTES = 4 << 20, MORE_TEXT = 40 };

/* ---- finding ---- */

static tp_status has_file(bool *has, const char *path, const char *name, struct tp_err *err)
{
    char file[PATH_MAX];
    tp_status st = file_join(file, path, name, err);

    return st ? st : object_exists(has, file, err);
}

/* A name like step-00000001, which others give to their folders too. */
static bool is_step_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    int64_t step;

    return step_parse_name(&step, slash ? slash + 1 : path) != STEP_NONE;
}

/* Looking for formats takes many requests, and treats files that cannot be reached as missing. So
 * first comes one whose answer says that the server can be reached. A server may forbid what is not
 * there, or listings (public buckets do): then files beside a config.json are looked for. */
static tp_status find_remote(const struct foreign_format **format, const char *path, int64_t step,
                             struct tp_err *err)
{
    char dir[PATH_MAX], url[PATH_MAX], name[STEP_NAME_MAX];
    bool is_own = false, has_config = false;
    struct tp_err ignored = { 0 };
    tp_status st;

    TP_TRY(location_clean(url, path, err));
    if (is_step_name(url)) {
        TP_TRY(has_file(&is_own, url, MANIFEST_FILE, err));
        if (!is_own)
            *format = foreign_format_detect_any(url);
        return TP_OK;
    }
    TP_TRY(has_file(&has_config, url, "config.json", err));
    st = ckpt_locate(dir, url, -1, err);
    if (!st) /* also when other files are beside the steps */
        return st;
    if (st == TP_E_NOTFOUND && step >= 0 && !file_join(dir, url, step_name(name, step), &ignored) &&
        !has_file(&is_own, dir, MANIFEST_FILE, &ignored) && is_own)
        return TP_OK;
    if ((has_config || st == TP_E_NOTFOUND) && (*format = foreign_format_detect_any(url)))
        return TP_OK;
    if (st == TP_E_NOTFOUND && step >= 0 && location_kind(url) == LOCATION_HTTP)
        st = tp_fail(err, st, "%s/%s: has no " MANIFEST_FILE, url, step_name(name, step));
    if (st == TP_E_NOTFOUND)
        st = tp_fail_in(err, "no checkpoint of tp-train, nor of another framework");
done:
    return st;
}

/* Whether a local root has a step that is not another framework's folder of this name. */
static bool has_own_step(const char *root)
{
    struct arena arena = { 0 };
    struct ckpt_step *steps = NULL;
    struct tp_err ignored = { 0 };
    char dir[PATH_MAX];
    bool found = false;
    int n = 0;

    if (ckpt_list(&steps, &n, root, &arena, &ignored))
        n = 0;
    for (int i = 0; i < n && !found; i++)
        found = steps[i].complete || file_join(dir, root, steps[i].name, &ignored) ||
                !foreign_place_is_step(dir);
    arena_free(&arena);
    return found;
}

bool foreign_contents_has_steps(const char *path)
{
    char dir[PATH_MAX], clean[PATH_MAX];
    struct tp_err ignored;
    bool is_own = false;

    if (location_clean(clean, path, &ignored))
        return false;
    if (location_is_remote(path) && is_step_name(clean))
        return has_file(&is_own, clean, MANIFEST_FILE, &ignored) == TP_OK && is_own;
    if (ckpt_locate(dir, clean, -1, &ignored) != TP_OK)
        return false;
    if (location_is_remote(path) || !foreign_place_is_step(dir))
        return true;
    return strcmp(dir, clean) != 0 && has_own_step(clean);
}

tp_status foreign_contents_find(const struct foreign_format **format, const char *path,
                                int64_t step, struct tp_err *err)
{
    *format = NULL;
    if (location_is_remote(path))
        return find_remote(format, path, step, err);
    if (foreign_contents_has_steps(path))
        return TP_OK; /* also when other files are beside the steps */
    *format = foreign_format_detect_any(path);
    return *format ? TP_OK : foreign_place_check(path, err);
}

/* ---- opening ---- */

/* All tensors, as they are stored; each is taken from its own group. */
static tp_status list_tensors(struct foreign_contents *c, struct tp_err *err)
{
    const int n = piece_source_count(c->source);
    const char **from = arena_array(&c->arena, (size_t)n + 1, sizeof *from);

    c->tensors = arena_array(&c->arena, (size_t)n + 1, sizeof *c->tensors);
    if (!from || !c->tensors)
        return tp_fail(err, TP_E_NOMEM, "no memory for a list of %d tensors", n);
    for (int i = 0; i < n; i++) {
        const struct piece *p = piece_source_tensor(c->source, i).pieces;
        struct tensor *t = &c->tensors[c->n_tensors];

        if (p->dtype == DTYPE_COUNT) {
            /* a mask of bits is not a loss */
            if (!family_has_buffer(NULL, p->name) && c->n_unread++ == 0 &&
                !(c->unread = arena_printf(&c->arena, "%s/%s", p->group, p->name)))
                return tp_fail(err, TP_E_NOMEM, "no memory for a list of %d tensors", n);
            continue;
        }
        from[c->n_tensors++] = p->group;
        *t = (struct tensor){ .name = p->name, .group = p->group, .dtype = p->dtype };
        t->ndim = p->ndim;
        memcpy(t->shape, p->shape, sizeof t->shape);
    }
    return piece_source_select(c->source, c->tensors, from, c->n_tensors, err);
}

/* Say so, unless there is more to say of the model, as where a config.json was made. */
static tp_status note_decoded(struct foreign_contents *c, struct tp_err *err)
{
    const int n = piece_source_decoded(c->source);

    if (n == 0 || c->note)
        return TP_OK;
    c->note = arena_printf(&c->arena, "%s: %d quantized weights are read as bf16",
                           piece_source_path(c->source), n);
    return c->note ? TP_OK : tp_fail(err, TP_E_NOMEM, "no memory for a note");
}

/* Find the model as imports do. Where it is neither named nor needed it may be of an unknown
 * architecture, or not be known; *why is the reason then. But names may depend on it, so an I/O
 * error of a file that is there is one. */
static tp_status find_model(bool *found, struct model *out, const char **note,
                            const struct foreign_model_request *from, struct arena *arena,
                            struct tp_err *why, struct tp_err *err)
{
    struct foreign_model_request q = *from;
    char dir[PATH_MAX];
    const bool has_file = from->takes_any && foreign_model_folder(dir, from->path);
    tp_status st;

    if (has_file)
        q.config = dir; /* it is not looked for again */
    st = foreign_model_read(out, note, &q, arena, from->takes_any ? why : err);
    *found = !st;
    if (st)
        *note = NULL;
    if (st != TP_E_IO || !has_file)
        return from->takes_any ? TP_OK : st;
    *err = *why;
    return st;
}

static tp_status open_source(struct foreign_contents *out, const char *path,
                             const struct foreign_contents_request *q, struct tp_err *err)
{
    const struct foreign_model_request from = { .path = path,
                                                .config = q->config,
                                                .format = q->format,
                                                .memory_bytes =
                                                    memory_budget_tables(q->memory_bytes),
                                                .takes_any = !q->config && !q->format->fused };
    bool has_model, config_missing = q->config || (!from.takes_any && !foreign_model_exists(&from));
    struct model model;
    struct tp_err why = { 0 };
    tp_status st;

    TP_TRY(foreign_adapter_check(path, err));
    TP_TRY(find_model(&has_model, &model, &out->note, &from, &out->arena, &why, err));
    config_missing = false;
    st = foreign_open(&out->source, q->format, path, has_model ? &model : NULL,
                      memory_budget_tables(q->memory_bytes), err);
    if (st == TP_E_USAGE && why.status == TP_E_USAGE) /* it needs the model */
        *err = why;
    TP_TRY(st);
    if (q->format->check)
        TP_TRY(q->format->check(out->source, err));
    TP_TRY(list_tensors(out, err));
    TP_TRY(note_decoded(out, err));
    out->refused = piece_source_refused_state(out->source);
done:
    out->incomplete = st == TP_E_NOTFOUND && !config_missing;
    return st;
}

/* The formats have no roots of many steps, so --step can only say which one it should be. */
static tp_status check_step(const struct foreign_contents *c, int64_t asked, struct tp_err *err)
{
    const int64_t step = piece_source_step(c->source);

    if (asked < 0 || step < 0 || step == asked)
        return TP_OK;
    return tp_fail(err, TP_E_NOTFOUND,
                   "%s: has step %lld, but step %lld was requested; name the folder of that step",
                   piece_source_path(c->source), (long long)step, (long long)asked);
}

tp_status foreign_contents_open(struct foreign_contents *out,
                                const struct foreign_contents_request *q, struct tp_err *err)
{
    const int64_t remote_bytes = memory_budget_remote(q->path, q->memory_bytes);
    int64_t later_bytes = LATER_BYTES + remote_bytes + q->buffer_bytes;
    struct memory_budget budget;
    char url[PATH_MAX];
    tp_status st = TP_OK;

    memset(out, 0, sizeof *out);
    out->format = q->format;
    out->weights = q->weights;
    /* before the tables are read, which fit into nothing where the program fills the limit */
    TP_TRY(memory_budget_make(&budget, q->memory_bytes, later_bytes, 1, err));
    if (location_is_remote(q->path))
        TP_TRY(location_clean(url, q->path, err));
    remote_object_sparse(true); /* tables and headers only */
    st = open_source(out, location_is_remote(q->path) ? url : q->path, q, err);
    remote_object_sparse(false);
    TP_TRY(memory_budget_explain(st, q->memory_bytes, err));
    TP_TRY(check_step(out, q->step, err));
    later_bytes += memory_budget_remote_more(q->path, q->memory_bytes, later_bytes, 1);
    TP_TRY(memory_budget_make(&budget, q->memory_bytes, later_bytes, 1, err));
done:
    return st;
}

void foreign_contents_close(struct foreign_contents *c)
{
    piece_source_close(c->source);
    arena_free(&c->arena);
}

/* ---- verify ---- */

/* The pieces of a tensor overlap nowhere, and have as many elements as it. */
static tp_status check_tensor(const struct foreign_contents *c, const struct extent_index *x, int i,
                              struct tp_err *err)
{
    const struct tensor *t = &c->tensors[i];
    const struct box whole = box_whole(t->ndim, t->shape);
    char a_text[BOX_TEXT_MAX], b_text[BOX_TEXT_MAX];
    int64_t elements = 0;
    int a = 0, b = 0;

    if (extent_index_overlap(x, i, &a, &b))
        return tp_fail(err, TP_E_CORRUPT,
                       "%s: tensor %s/%s has elements twice, in the boxes %s and %s",
                       piece_source_path(c->source), t->group, t->name,
                       box_format(a_text, extent_index_box(x, i, a)),
                       box_format(b_text, extent_index_box(x, i, b)));
    for (int k = 0; k < extent_index_count(x, i); k++)
        elements += box_elements(extent_index_box(x, i, k));
    if (elements != box_elements(&whole))
        return tp_fail(err, TP_E_CORRUPT, "%s: tensor %s/%s has %lld of its %lld elements",
                       piece_source_path(c->source), t->group, t->name, (long long)elements,
                       (long long)box_elements(&whole));
    return TP_OK;
}

static tp_status check_coverage(const struct foreign_contents *c, struct tp_err *err)
{
    struct reshard_tensor *tensors = calloc((size_t)c->n_tensors + 1, sizeof *tensors);
    struct extent_index *x = NULL;
    tp_status st = TP_OK;

    if (!tensors)
        return tp_fail(err, TP_E_NOMEM, "no memory for a list of %d tensors", c->n_tensors);
    for (int i = 0; i < c->n_tensors; i++) {
        tensors[i] =
            (struct reshard_tensor){ .name = c->tensors[i].name, .ndim = c->tensors[i].ndim };
        memcpy(tensors[i].shape, c->tensors[i].shape, sizeof tensors[i].shape);
    }
    TP_TRY(extent_index_make(&x, piece_source_endpoint(c->source), tensors, c->n_tensors, err));
    for (int i = 0; i < c->n_tensors; i++)
        TP_TRY(check_tensor(c, x, i, err));
done:
    extent_index_free(x);
    free(tensors);
    return st;
}

tp_status foreign_contents_verify(struct foreign_contents *c, int64_t *checked, int64_t *unchecked,
                                  struct tp_err *err)
{
    tp_status st;

    if (c->n_tensors == 0)
        return tp_fail(err, TP_E_USAGE,
                       "%s: has no tensor of a type that is read, so nothing of it can be verified",
                       piece_source_path(c->source));
    st = check_coverage(c, err);
    if (!st && c->refused && c->refused->status == TP_E_CORRUPT) {
        *err = *c->refused;
        return TP_E_CORRUPT;
    }
    return st ? st : piece_source_verify(c->source, checked, unchecked, err);
}

/* ---- digest ---- */

tp_status foreign_contents_need_all(const struct foreign_contents *c, struct tp_err *err)
{
    char more[MORE_TEXT] = "";

    if (c->refused && !c->weights)
        return tp_fail(err, TP_E_CORRUPT, "%s", c->refused->msg);
    if (!c->n_unread)
        return TP_OK;
    if (c->n_unread > 1)
        snprintf(more, sizeof more, ", and so have %d more", c->n_unread - 1);
    return tp_fail(err, TP_E_CORRUPT,
                   "%s: tensor %s has a dtype that is not supported%s; supported are f32, bf16, "
                   "f16, f64, i64, i32 and u8",
                   piece_source_path(c->source), c->unread, more);
}

/* A place in the runs of all extents, in order. */
struct run_cursor {
    int extent;
    int64_t run;
};

/* The next run, which has *bytes bytes; false: there is none. */
static bool next_run(struct run_cursor *c, const struct reshard_endpoint *from, int *extent,
                     struct box *run, int64_t *bytes)
{
    for (; c->extent < from->n_extents; c->extent++, c->run = 0) {
        const struct reshard_extent *e = &from->extents[c->extent];
        const int64_t elem = dtype_bytes(from->dtypes[e->tensor]);

        if (c->run >= box_run_count(&e->box, RUN_BYTES / elem))
            continue;
        box_run(run, &e->box, RUN_BYTES / elem, c->run++);
        *extent = c->extent;
        *bytes = box_elements(run) * elem;
        return true;
    }
    return false;
}

/* Read all runs. A slow source gets the ranges of the next runs in advance. */
static tp_status read_all(const struct reshard_endpoint *from, void *buf, struct progress *progress,
                          struct tp_err *err)
{
    struct run_cursor at = { 0 }, ahead = { 0 };
    int64_t bytes, ahead_bytes = 0;
    struct box run;
    int extent;
    tp_status st = TP_OK;

    while (!st && next_run(&at, from, &extent, &run, &bytes)) {
        struct box later;
        int64_t later_bytes;
        int number;

        while (from->will_read && ahead_bytes < from->ahead_bytes &&
               next_run(&ahead, from, &number, &later, &later_bytes)) {
            from->will_read(from->ctx, number, &later);
            ahead_bytes += later_bytes;
        }
        st = from->read(from->ctx, extent, &run, buf, err);
        ahead_bytes -= bytes;
        progress_add(progress, bytes);
    }
    return st;
}

tp_status foreign_contents_digest(struct foreign_contents *c, struct digest *digests,
                                  struct progress *progress, struct tp_err *err)
{
    const struct reshard_endpoint *from = piece_source_endpoint(c->source);
    void *buf = malloc(RUN_BYTES);
    tp_status st = TP_OK;

    if (!buf)
        return tp_fail(err, TP_E_NOMEM, "no memory to read tensors");
    TP_TRY(foreign_contents_need_all(c, err));
    TP_TRY(check_coverage(c, err));
    TP_TRY(read_all(from, buf, progress, err));
    TP_TRY(from->check(from->ctx, err));
    for (int i = 0; i < c->n_tensors; i++)
        digests[i] = from->digest(from->ctx, i);
done:
    free(buf);
    return st;
}
