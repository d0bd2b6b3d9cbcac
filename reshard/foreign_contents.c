/* reshard/foreign_contents.c - see reshard/foreign_contents.h. */
#include "reshard/foreign_contents.h"

#include <stdlib.h>
#include <string.h>

#include "reshard/engine/extent_index.h"
#include "reshard/formats/foreign_model.h"
#include "storage/location.h"

enum { RUN_BYTES = 1 << 20 };

bool foreign_contents_detect(const char *path)
{
    return !location_is_remote(path) && foreign_format_detect_any(path) != NULL;
}

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

        if (p->dtype == DTYPE_COUNT)
            continue;
        from[c->n_tensors++] = p->group;
        *t = (struct tensor){ .name = p->name, .group = p->group, .dtype = p->dtype };
        t->ndim = p->ndim;
        memcpy(t->shape, p->shape, sizeof t->shape);
    }
    return piece_source_select(c->source, c->tensors, from, c->n_tensors, err);
}

tp_status foreign_contents_open(struct foreign_contents *out, const char *path, const char *config,
                                struct tp_err *err)
{
    struct foreign_model_request q = { .path = path, .config = config };
    struct model model;
    bool has_model;
    tp_status st;

    memset(out, 0, sizeof *out);
    out->format = foreign_format_detect_any(path);
    if (!out->format)
        return tp_fail(err, TP_E_NOTFOUND, "%s: is no checkpoint of a known format", path);
    q.format = out->format;
    has_model = foreign_model_exists(&q);
    if (has_model)
        TP_TRY(foreign_model_read(&model, &out->note, &q, &out->arena, err));
    TP_TRY(foreign_open(&out->source, out->format, path, has_model ? &model : NULL, 0, err));
    if (out->format->check)
        TP_TRY(out->format->check(out->source, err));
    TP_TRY(list_tensors(out, err));
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
    tp_status st = check_coverage(c, err);

    return st ? st : piece_source_verify(c->source, checked, unchecked, err);
}

/* ---- digest ---- */

static tp_status read_extent(const struct reshard_endpoint *from, int extent, void *buf,
                             struct progress *progress, struct tp_err *err)
{
    const struct reshard_extent *e = &from->extents[extent];
    const int64_t elem = dtype_bytes(from->dtypes[e->tensor]),
                  n = box_run_count(&e->box, RUN_BYTES / elem);
    tp_status st = TP_OK;

    for (int64_t i = 0; i < n && !st; i++) {
        struct box run;

        box_run(&run, &e->box, RUN_BYTES / elem, i);
        st = from->read(from->ctx, extent, &run, buf, err);
        progress_add(progress, box_elements(&run) * elem);
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
    TP_TRY(check_coverage(c, err));
    for (int i = 0; i < from->n_extents; i++)
        TP_TRY(read_extent(from, i, buf, progress, err));
    TP_TRY(from->check(from->ctx, err));
    for (int i = 0; i < c->n_tensors; i++)
        digests[i] = from->digest(from->ctx, i);
done:
    free(buf);
    return st;
}
