/* layout/layout.c - see layout/layout.h. */
#include "layout/layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layout/column_blocks.h"
#include "layout/suggest.h"

/* How a tensor is cut by tp: `parts` different shards, each held by `repeat` neighbouring ranks. */
struct parts {
    int64_t units; /* of each fused block */
    int parts, repeat;
};

/* Units of each fused block; of a padded tensor the last may be short. */
static int64_t units_of(const struct tensor *t)
{
    int64_t block = t->shape[t->placement.dim] / t->placement.blocks;

    return block / t->placement.unit + (t->placement.uneven && block % t->placement.unit != 0);
}

static struct parts cut_of(const struct tensor *t, int tp)
{
    struct parts c = { .units = 1, .parts = 1, .repeat = tp };

    if (t->placement.dim < 0)
        return c;
    c.units = units_of(t);
    c.parts = tp;
    c.repeat = 1;
    if (t->placement.replicate && c.units < tp) {
        c.parts = (int)c.units;
        c.repeat = tp / c.parts;
    }
    return c;
}

/* Part number `part` of n units in `parts`: ceil(n / parts) each, the last ones shorter or empty.
 */
static void cut_part(int64_t n, int parts, int part, int64_t *lo, int64_t *len)
{
    int64_t each = (n + parts - 1) / parts, end;

    *lo = each * part;
    if (*lo > n)
        *lo = n;
    end = *lo + each;
    *len = (end > n ? n : end) - *lo;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Boxes of shard number `part`; empty ones are left out. */
static int part_boxes(const struct tensor *t, const struct parts *c, int part, struct box *boxes)
{
    const struct placement *r = &t->placement;
    int64_t lo, len, block, from, to;
    int n = 0;

    boxes[0] = box_whole(t->ndim, t->shape);
    if (r->dim < 0)
        return box_is_empty(&boxes[0]) ? 0 : 1;
    cut_part(c->units, c->parts, part, &lo, &len);
    block = t->shape[r->dim] / r->blocks;
    from = least(lo * r->unit, block);
    to = least((lo + len) * r->unit, block);
    for (int b = 0; b < r->blocks; b++) {
        boxes[n] = box_whole(t->ndim, t->shape);
        boxes[n].lo[r->dim] = b * block + from;
        boxes[n].len[r->dim] = to - from;
        if (!box_is_empty(&boxes[n]))
            n++;
    }
    return n;
}

/* Keep of boxes what dp rank `part` of `parts` stores: a range of the shard's rows. The boxes of a
 * tensor that is fused along its rows lie one after the other, others side by side. */
static int zero_boxes(const struct tensor *t, int parts, int part, struct box *boxes, int n)
{
    bool stacked = t->placement.dim == 0;
    int64_t rows = 0, first = 0, lo, len;
    int kept = 0;

    if (n == 0 || t->ndim == 0)
        return part == 0 ? n : 0;
    for (int i = 0; i < n; i++)
        rows = stacked ? rows + boxes[i].len[0] : boxes[i].len[0];
    cut_part(rows, parts, part, &lo, &len);
    for (int i = 0; i < n; i++) {
        struct box b = boxes[i];
        int64_t from = lo - first, to = lo + len - first;

        if (from < 0)
            from = 0;
        if (to > b.len[0])
            to = b.len[0];
        if (stacked)
            first += b.len[0];
        if (to <= from)
            continue;
        b.lo[0] += from;
        b.len[0] = to - from;
        boxes[kept++] = b;
    }
    return kept;
}

static bool is_zero_sharded(const struct spec *s, const struct tensor *t)
{
    return s->dp > 1 && (s->zero == 3 || (s->zero && strcmp(t->group, GROUP_PARAM) != 0));
}

static int pp_rank_of(const struct layout *l, int layer)
{
    if (layer == LAYER_FIRST)
        return 0;
    if (layer == LAYER_LAST)
        return l->spec.pp - 1;
    return l->stage_of[layer] % l->spec.pp;
}

int layout_tp_boxes(const struct tensor *t, const struct spec *s, int tp_rank, struct box *boxes)
{
    struct parts c = cut_of(t, s->tp);

    return part_boxes(t, &c, tp_rank / c.repeat, boxes);
}

bool layout_holds(const struct layout *l, int t, int rank)
{
    return pp_rank_of(l, l->tensors[t].layer) == mesh_coord_of(&l->spec, rank).pp;
}

int layout_dp_boxes(const struct tensor *t, const struct spec *s, int tp_rank, int dp_rank,
                    struct box *boxes)
{
    int n = layout_tp_boxes(t, s, tp_rank, boxes);

    return zero_boxes(t, s->dp, dp_rank, boxes, n);
}

int layout_boxes(const struct layout *l, int t, int rank, struct box *boxes)
{
    const struct tensor *tensor = &l->tensors[t];
    struct mesh_coord at = mesh_coord_of(&l->spec, rank);
    int n;

    if (!layout_holds(l, t, rank))
        return 0;
    n = layout_tp_boxes(tensor, &l->spec, at.tp, boxes);
    if (is_zero_sharded(&l->spec, tensor))
        n = zero_boxes(tensor, l->spec.dp, at.dp, boxes, n);
    return n;
}

/* ---- legality ---- */

/* Why tp cannot cut t; false when it can. */
static bool refuses_tp(const struct tensor *t, int tp, char *why, size_t size)
{
    const struct placement *r = &t->placement;
    int64_t units;

    if (r->dim < 0)
        return false;
    units = units_of(t);
    if (t->shape[r->dim] % (r->blocks * (r->uneven ? 1 : r->unit)) != 0) {
        snprintf(why, size, "its axis %d of %lld is no multiple of %d x %lld", r->dim,
                 (long long)t->shape[r->dim], r->blocks, (long long)r->unit);
        return true;
    }
    if (r->uneven || units % tp == 0 || (r->replicate && units > 0 && tp % units == 0))
        return false;
    if (r->unit > 1)
        snprintf(why, size, "its %lld %sheads of %lld on axis %d do not divide by tp %d",
                 (long long)units, r->replicate ? "key-value " : "", (long long)r->unit, r->dim,
                 tp);
    else
        snprintf(why, size, "its %lld features on axis %d do not divide by tp %d", (long long)units,
                 r->dim, tp);
    return true;
}

static tp_status fail_layout(const struct spec *spec, const char *what, const char *why,
                             struct tp_err *err)
{
    char text[SPEC_TEXT_MAX];

    return tp_fail(err, TP_E_LAYOUT, "layout %s does not fit %s: %s", spec_format(text, spec), what,
                   why);
}

tp_status layout_check(const struct spec *spec, int n_layers, const struct tensor *tensors, int n,
                       struct tp_err *err)
{
    int64_t stages = (int64_t)spec->pp * spec->vpp;
    char why[160];

    if (spec->vpp > 1 && spec->pp == 1)
        return fail_layout(spec, "any model", "vpp needs pp of at least 2", err);
    if (stages > n_layers && stages > 1) {
        snprintf(why, sizeof why, "its %d layers are fewer than its %lld stages", n_layers,
                 (long long)stages);
        return fail_layout(spec, "the model", why, err);
    }
    for (int i = 0; i < n; i++)
        if (refuses_tp(&tensors[i], spec->tp, why, sizeof why))
            return fail_layout(spec, tensors[i].name, why, err);
    return TP_OK;
}

/* The sentence of layout_check, with what would work. */
static tp_status check_spec(const struct spec *spec, int n_layers, const struct tensor *tensors,
                            int n, struct tp_err *err)
{
    const struct suggest near = {
        .asked = spec, .n_layers = n_layers, .tensors = tensors, .n_tensors = n
    };
    tp_status st = layout_check(spec, n_layers, tensors, n, err);
    struct spec specs[SUGGEST_MAX];
    struct tp_err why;
    char text[SUGGEST_TEXT_MAX];
    int found;

    if (!st)
        return TP_OK;
    why = *err;
    found = suggest_specs(specs, &near);
    return tp_fail(err, st, "%.700s; nearest that fit: %s", why.msg,
                   suggest_text(text, specs, found));
}

int layout_stage_layers(int n_layers, int64_t n_stages, int64_t stage)
{
    return (int)(n_layers / n_stages + (stage < n_layers % n_stages));
}

tp_status layout_make(struct layout *out, const struct spec *spec, int n_layers,
                      struct tensor *tensors, int n_tensors, struct arena *arena,
                      struct tp_err *err)
{
    tp_status st = check_spec(spec, n_layers, tensors, n_tensors, err);
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
    return TP_OK;
}

int layout_find(const struct layout *l, const char *group, const char *name)
{
    for (int i = 0; i < l->n_tensors; i++)
        if (strcmp(l->tensors[i].name, name) == 0 && strcmp(l->tensors[i].group, group) == 0)
            return i;
    return -1;
}

/* ---- who writes what ---- */

struct dealer {
    const struct layout *layout;
    int64_t *bytes_of; /* [world] dealt so far */
    struct stored_box *extents;
    int n, room;
};

/* The least loaded rank that holds shard (tp part, dp part) of t; the lowest of equals. */
static int pick_writer(const struct dealer *d, const struct tensor *t, const struct parts *c,
                       int part, int dp_first, int dp_count)
{
    const struct spec *s = &d->layout->spec;
    int best = -1;

    for (int dp = dp_first; dp < dp_first + dp_count; dp++)
        for (int cp = 0; cp < s->cp; cp++)
            for (int tp = part * c->repeat; tp < (part + 1) * c->repeat; tp++) {
                struct mesh_coord at = { pp_rank_of(d->layout, t->layer), dp, cp, tp };
                int rank = mesh_rank_of(s, at);

                if (best < 0 || d->bytes_of[rank] < d->bytes_of[best])
                    best = rank;
            }
    return best;
}

/* Give a box to its writer as the blocks in which it is stored; the first is number `part`. Returns
 * how many. */
static int deal_box(struct dealer *d, int t, int part, int writer, const struct box *box,
                    int64_t *count)
{
    const struct tensor *tensor = &d->layout->tensors[t];
    struct box blocks[COLUMN_BLOCKS_MAX];
    int n = column_blocks(tensor, box, blocks);

    for (int i = 0; i < n; i++) {
        d->extents[d->n++] = (struct stored_box){ t, part + i, writer, blocks[i] };
        d->bytes_of[writer] += box_elements(&blocks[i]) * dtype_bytes(tensor->dtype);
        *count += box_elements(&blocks[i]);
    }
    return n;
}

/* Deal every shard of tensor t; `count` gets the elements dealt. */
static void deal_tensor(struct dealer *d, int t, int64_t *count)
{
    const struct tensor *tensor = &d->layout->tensors[t];
    const struct spec *s = &d->layout->spec;
    struct parts c = cut_of(tensor, s->tp);
    bool sharded = is_zero_sharded(s, tensor);
    int dp_parts = sharded ? s->dp : 1;

    for (int part = 0; part < c.parts; part++)
        for (int dp = 0; dp < dp_parts; dp++) {
            struct box boxes[TENSOR_BOXES_MAX];
            int n = part_boxes(tensor, &c, part, boxes), writer;

            if (sharded)
                n = zero_boxes(tensor, s->dp, dp, boxes, n);
            if (n == 0)
                continue;
            writer = pick_writer(d, tensor, &c, part, dp, sharded ? 1 : s->dp);
            for (int i = 0, parts = 0; i < n; i++)
                parts += deal_box(d, t, parts, writer, &boxes[i], count);
        }
}

static int by_rank_tensor_part(const void *a, const void *b)
{
    const struct stored_box *x = a, *y = b;

    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    if (x->tensor != y->tensor)
        return x->tensor < y->tensor ? -1 : 1;
    return x->part < y->part ? -1 : x->part > y->part;
}

/* Whether somebody has to be chosen to write t. */
static bool has_choice(const struct layout *l, const struct tensor *t)
{
    return cut_of(t, l->spec.tp).repeat > 1 || l->spec.cp > 1 ||
           (l->spec.dp > 1 && !is_zero_sharded(&l->spec, t));
}

tp_status layout_stored_boxes(struct stored_box **extents, int *n, const struct layout *l,
                              struct arena *arena, struct tp_err *err)
{
    struct dealer d = { .layout = l };
    tp_status st = TP_OK;
    int64_t room = 0;

    for (int t = 0; t < l->n_tensors; t++)
        room += (int64_t)cut_of(&l->tensors[t], l->spec.tp).parts * l->tensors[t].placement.blocks *
                (l->tensors[t].placement.dim > 0 ? COLUMN_BLOCKS_MAX : 1) *
                (is_zero_sharded(&l->spec, &l->tensors[t]) ? l->spec.dp : 1);
    d.bytes_of = calloc((size_t)spec_world(&l->spec), sizeof *d.bytes_of);
    d.extents = room < INT32_MAX ? arena_array(arena, (size_t)room, sizeof *d.extents) : NULL;
    if (!d.bytes_of || !d.extents) {
        st = tp_fail(err, TP_E_NOMEM, "no memory for a list of %lld boxes", (long long)room);
        goto done;
    }
    for (int choice = 0; choice < 2; choice++) /* those with a choice last, to even things out */
        for (int t = 0; t < l->n_tensors; t++) {
            struct box whole = box_whole(l->tensors[t].ndim, l->tensors[t].shape);
            int64_t count = 0;

            if (has_choice(l, &l->tensors[t]) != (choice == 1))
                continue;
            deal_tensor(&d, t, &count);
            if (count != box_elements(&whole)) {
                st = tp_fail(err, TP_E_INTERNAL, "%s/%s: the boxes hold %lld elements, not %lld",
                             l->tensors[t].group, l->tensors[t].name, (long long)count,
                             (long long)box_elements(&whole));
                goto done;
            }
        }
    qsort(d.extents, (size_t)d.n, sizeof *d.extents, by_rank_tensor_part);
    *extents = d.extents;
    *n = d.n;
done:
    free(d.bytes_of);
    return st;
}
