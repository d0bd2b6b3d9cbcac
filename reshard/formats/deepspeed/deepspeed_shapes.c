/* reshard/formats/deepspeed/deepspeed_shapes.c - the shapes of parameters that model states have;
 * see reshard/formats/deepspeed/deepspeed_state.h. */
#include "reshard/formats/deepspeed/deepspeed_state.h"

#include <stdlib.h>
#include <string.h>

#include "layout/tensor.h"
#include "reshard/formats/pieces/compiled_name.h"

enum { COUNT_MAX = 1 << 20 };

static tp_status refuse(const struct torch_pieces *x, const char *key, const char *what,
                        struct tp_err *err)
{
    return tp_fail(err, TP_E_CORRUPT, "%s: %s %s",
                   file_table_path(piece_source_files(x->source), x->file), key, what);
}

bool deepspeed_state_count(int *out, const struct pickle_value *root, const char *key)
{
    int64_t n = 0;

    if (!pickle_int(&n, pickle_get(root, key)) || n < 1 || n > COUNT_MAX)
        return false;
    *out = (int)n;
    return true;
}

int64_t deepspeed_state_elements(const struct deepspeed_state_param *p)
{
    const struct box whole = box_whole(p->ndim, p->shape);

    return box_elements(&whole);
}

int64_t deepspeed_state_part(const struct deepspeed_state *d, const struct deepspeed_state_param *p)
{
    return (deepspeed_state_elements(p) + d->dp - 1) / d->dp;
}

/* ---- by name ---- */

static int by_name(const void *a, const void *b)
{
    const struct deepspeed_state_param *const *x = a, *const *y = b;

    return strcmp((*x)->name, (*y)->name);
}

static tp_status sort(struct deepspeed_state_param ***out, const struct deepspeed_state *d,
                      const struct deepspeed_shapes *shapes, struct tp_err *err)
{
    struct deepspeed_state_param **sorted =
        arena_array(piece_source_arena(d->source), (size_t)shapes->n + 1, sizeof *sorted);

    if (!sorted)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its parameters", d->dir);
    for (int i = 0; i < shapes->n; i++)
        sorted[i] = &shapes->list[i];
    qsort(sorted, (size_t)shapes->n, sizeof *sorted, by_name);
    *out = sorted;
    return TP_OK;
}

tp_status deepspeed_shapes_take(struct deepspeed_state *d, const struct deepspeed_shapes *params,
                                struct tp_err *err)
{
    d->params = params->list;
    d->n_params = params->n;
    return sort(&d->by_name, d, params, err);
}

tp_status deepspeed_shapes_take_frozen(struct deepspeed_state *d,
                                       const struct deepspeed_shapes *frozen, struct tp_err *err)
{
    d->frozen = frozen->list;
    d->n_frozen = frozen->n;
    return sort(&d->frozen_by_name, d, frozen, err);
}

static struct deepspeed_state_param *find(struct deepspeed_state_param *const *sorted, int n,
                                          const char *name)
{
    const struct deepspeed_state_param param = { .name = name }, *key = &param;
    struct deepspeed_state_param *const *found =
        name && n > 0 ? bsearch(&key, sorted, (size_t)n, sizeof *sorted, by_name) : NULL;

    return found ? *found : NULL;
}

struct deepspeed_state_param *deepspeed_state_find(const struct deepspeed_state *d,
                                                   const char *name)
{
    return find(d->by_name, d->n_params, name);
}

struct deepspeed_state_param *deepspeed_state_find_frozen(const struct deepspeed_state *d,
                                                          const char *name)
{
    return find(d->frozen_by_name, d->n_frozen, name);
}

/* ---- reading ---- */

/* torch.Size: a call with a tuple. */
static bool read_size(struct deepspeed_state_param *p, const struct pickle_value *v)
{
    if (pickle_is_call(v, "torch", "Size"))
        v = pickle_item(v->object.args, 0);
    p->ndim = (int)pickle_count(v);
    if (!pickle_is(v, PICKLE_TUPLE) || pickle_count(v) > BOX_NDIM_MAX)
        return false;
    for (int d = 0; d < p->ndim; d++)
        if (!pickle_int(&p->shape[d], pickle_item(v, d)) || p->shape[d] < 0)
            return false;
    return tensor_shape_is_possible(p->ndim, p->shape);
}

/* A dict of shapes for each group of the optimizer, or one dict. */
tp_status deepspeed_shapes_read(struct deepspeed_shapes *out, const struct torch_pieces *x,
                                const char *key, struct arena *arena, struct tp_err *err)
{
    const struct pickle_value *shapes = pickle_get(x->root, key);
    const bool one = pickle_is(shapes, PICKLE_DICT);
    const int64_t n_groups = one ? 1 : pickle_count(shapes);
    int64_t n = 0;

    for (int64_t g = 0; g < n_groups; g++)
        n += pickle_entries(one ? shapes : pickle_item(shapes, g));
    *out = (struct deepspeed_shapes){ arena_array(arena, (size_t)n + 1, sizeof *out->list), 0 };
    if (!out->list)
        return refuse(x, key, "needs more memory than there is", err);
    for (int64_t g = 0; g < n_groups; g++) {
        const struct pickle_value *group = one ? shapes : pickle_item(shapes, g);

        for (int64_t i = 0; i < pickle_entries(group); i++) {
            struct deepspeed_state_param *p = &out->list[out->n++];
            const char *name = pickle_text(pickle_key(group, i));

            p->group = (int)g;
            p->name = name ? arena_strdup(arena, name) : NULL;
            p->plain = name ? compiled_name_plain(arena, name) : NULL;
            if (!p->name || !p->plain || !read_size(p, pickle_entry(group, i)))
                return refuse(x, key, "has a shape that is wrong", err);
        }
    }
    return TP_OK;
}
