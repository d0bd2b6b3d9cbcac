/* layout/layout.c - see layout/layout.h. */
#include "layout/layout.h"

#include <stdlib.h>
#include <string.h>

#include "layout/layout_check.h"
#include "layout/suggest.h"
#include "layout/tensor_parts.h"

int layout_owners(const struct spec *s, const struct tensor *t)
{
    if (s->dp == 1 || s->zero == 0)
        return 1;
    if (layout_ep_of(s, t) >= 0)
        return s->zero == 3 ? s->dp * s->cp / s->ep : 1;
    return s->zero == 3 || strcmp(t->group, GROUP_PARAM) != 0 ? s->dp : 1;
}

struct layout_owner layout_owner_of(const struct spec *s, const struct tensor *t,
                                    struct mesh_coord at)
{
    struct layout_owner owner = { .of = layout_owners(s, t) };

    owner.number = (at.dp * s->cp + at.cp) / (s->dp * s->cp / owner.of);
    return owner;
}

int layout_ep_of(const struct spec *s, const struct tensor *t)
{
    if (s->ep <= 1 || t->placement.experts == 0)
        return -1;
    return t->placement.expert / (t->placement.experts / s->ep);
}

int layout_stage_rank(const struct layout *l, int layer)
{
    if (layer == LAYER_FIRST)
        return 0;
    if (layer == LAYER_LAST)
        return l->spec.pp - 1;
    return l->stage_of[layer] % l->spec.pp;
}

bool layout_holds(const struct layout *l, int t, int rank)
{
    struct mesh_coord at = mesh_coord_of(&l->spec, rank);
    int ep = layout_ep_of(&l->spec, &l->tensors[t]);

    return layout_stage_rank(l, l->tensors[t].layer) == at.pp &&
           (ep < 0 || ep == mesh_ep_of(&l->spec, at));
}

int layout_tp_boxes(const struct tensor *t, const struct spec *s, int tp_rank, struct box *boxes)
{
    struct tensor_parts p = tensor_parts_of(t, s->tp);

    return tensor_parts_boxes(t, &p, tp_rank / p.repeat, boxes);
}

int layout_owned_boxes(const struct tensor *t, const struct spec *s, int tp_rank,
                       struct layout_owner owner, struct box *boxes)
{
    int n = layout_tp_boxes(t, s, tp_rank, boxes);

    return owner.of > 1 ? tensor_parts_shard(t, owner.of, owner.number, boxes, n) : n;
}

int layout_first_holder(const struct tensor *t, const struct spec *s, int tp_rank)
{
    struct tensor_parts p = tensor_parts_of(t, s->tp);
    struct box boxes[TENSOR_BOXES_MAX];

    return layout_tp_boxes(t, s, tp_rank, boxes) ? tp_rank / p.repeat * p.repeat : tp_rank;
}

int layout_boxes(const struct layout *l, int t, int rank, struct box *boxes)
{
    const struct tensor *tensor = &l->tensors[t];
    struct mesh_coord at = mesh_coord_of(&l->spec, rank);

    if (!layout_holds(l, t, rank))
        return 0;
    return layout_owned_boxes(tensor, &l->spec, at.tp, layout_owner_of(&l->spec, tensor, at),
                              boxes);
}

static int by_group_and_name(const void *a, const void *b)
{
    const struct tensor *x = *(const struct tensor *const *)a,
                        *y = *(const struct tensor *const *)b;
    int order = strcmp(x->group, y->group);

    return order ? order : strcmp(x->name, y->name);
}

tp_status layout_index(struct layout *l, struct arena *arena, struct tp_err *err)
{
    l->by_name = arena_array(arena, (size_t)l->n_tensors + 1, sizeof *l->by_name);
    if (!l->by_name)
        return tp_fail(err, TP_E_NOMEM, "no memory for a list of %d tensors", l->n_tensors);
    for (int i = 0; i < l->n_tensors; i++)
        l->by_name[i] = &l->tensors[i];
    qsort(l->by_name, (size_t)l->n_tensors, sizeof *l->by_name, by_group_and_name);
    return TP_OK;
}

static int bisect(const struct layout *l, const char *group, const char *name)
{
    const struct tensor tensor = { .group = group, .name = name }, *key = &tensor;
    const struct tensor *const *found =
        bsearch(&key, l->by_name, (size_t)l->n_tensors, sizeof key, by_group_and_name);

    return found ? (int)(*found - l->tensors) : -1;
}

int layout_find(const struct layout *l, const char *group, const char *name)
{
    if (l->by_name)
        return bisect(l, group, name);
    for (int i = 0; i < l->n_tensors; i++)
        if (strcmp(l->tensors[i].name, name) == 0 && strcmp(l->tensors[i].group, group) == 0)
            return i;
    return -1;
}

/* ---- making ---- */

/* The axes that a request must name to get a spec near this one: those that it named, and those
 * that it may have taken from elsewhere. tp-reshard --to tp2 keeps the ep of its source. */
static unsigned axes_to_name(const struct spec *asked)
{
    const struct spec plain = spec_default();

    return asked->given | spec_kept(&plain, asked).given;
}

/* layout_check, with the nearest specs that fit in the message. */
static tp_status check(const struct spec *spec, int n_layers, const struct tensor *tensors, int n,
                       struct tp_err *err)
{
    struct suggest near = { .asked = spec, .n_layers = n_layers };
    struct spec specs[SUGGEST_MAX];
    struct arena arena = { 0 };
    struct tp_err why;
    char text[SUGGEST_TEXT_MAX];
    tp_status st;
    int found;

    TP_TRY(tensor_kinds_find(&near.kinds, tensors, n, &arena, err));
    st = layout_check(spec, n_layers, &near.kinds, err);
    if (!st)
        goto done;
    why = *err;
    found = suggest_specs(specs, &near);
    tp_fail(err, st, "%.700s; nearest that fit: %s", why.msg,
            suggest_text(text, specs, found, axes_to_name(spec)));
done:
    arena_free(&arena);
    return st;
}

int layout_stage_layers(int n_layers, int64_t n_stages, int64_t stage)
{
    return (int)(n_layers / n_stages + (stage < n_layers % n_stages));
}

tp_status layout_make(struct layout *out, const struct spec *spec, int n_layers,
                      struct tensor *tensors, int n_tensors, struct arena *arena,
                      struct tp_err *err)
{
    tp_status st = check(spec, n_layers, tensors, n_tensors, err);
    int *stage_of, n_stages, layer = 0;

    if (st)
        return st;
    n_stages = spec->pp * spec->vpp; /* at most n_layers, or 1 */
    stage_of = arena_array(arena, (size_t)n_layers, sizeof *stage_of);
    if (!stage_of)
        return tp_fail(err, TP_E_NOMEM, "no memory for a table of %d layers", n_layers);
    for (int s = 0; s < n_stages; s++)
        for (int i = 0; i < layout_stage_layers(n_layers, n_stages, s); i++)
            stage_of[layer++] = s;
    *out = (struct layout){ .spec = *spec,
                            .n_layers = n_layers,
                            .stage_of = stage_of,
                            .n_tensors = n_tensors,
                            .tensors = tensors };
    return layout_index(out, arena, err);
}
