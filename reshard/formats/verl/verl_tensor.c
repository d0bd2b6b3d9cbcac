/*
 * reshard/formats/verl/verl_tensor.c - see reshard/formats/verl/verl_tensor.h. How they are
 * pickled: torch/_tensor.py (_rebuild_from_type_v2), torch/distributed/device_mesh.py,
 * torch/distributed/tensor/_dtensor_spec.py, torch/distributed/_shard/sharded_tensor/api.py.
 */
#include "reshard/formats/verl/verl_tensor.h"

#include <string.h>

enum { SHAPE_TEXT = 160 };

static const char *path_of(const struct verl_rank *r)
{
    return file_table_path(piece_source_files(r->x.source), r->x.file);
}

static tp_status refuse(const struct verl_rank *r, const char *name, const char *what,
                        struct tp_err *err)
{
    return tp_fail(err, TP_E_CORRUPT, "%s: tensor %s %s", path_of(r), name, what);
}

/* ---- attributes ---- */

/* An attribute of an object, whose state is a dict, or (None, dict) where its class has slots. */
static const struct pickle_value *attribute(const struct pickle_value *v, const char *key)
{
    const struct pickle_value *state = v && v->kind == PICKLE_OBJECT ? v->object.state : NULL,
                              *found = pickle_get(state, key);

    for (int i = 0; i < 2 && !found; i++)
        found = pickle_get(pickle_item(state, i), key);
    return found;
}

/* Whether a value names a class of torch.distributed. */
static bool is_class(const struct pickle_value *v)
{
    static const char head[] = "torch.distributed.";

    return v && v->kind == PICKLE_GLOBAL && strncmp(v->global.module, head, sizeof head - 1) == 0;
}

/* The name of the class of an object of torch.distributed; "": it is none. */
static const char *class_of(const struct pickle_value *v)
{
    const struct pickle_value *type = v && v->kind == PICKLE_OBJECT ? v->object.callable : NULL;

    return is_class(type) ? type->global.name : "";
}

/* Arguments of _rebuild_from_type_v2 (function, type, arguments, state), which makes what has
 * subclasses; NULL: another call, or another type than `type` of torch.distributed. */
static const struct pickle_value *wrapped(const struct pickle_value *v, const char *type)
{
    const struct pickle_value *args, *is;

    if (!pickle_is_call(v, "torch._tensor", "_rebuild_from_type_v2"))
        return NULL;
    args = v->object.args;
    is = pickle_item(args, 1);
    return is_class(is) && strcmp(is->global.name, type) == 0 &&
                   pickle_is_global(pickle_item(args, 0), "torch._utils",
                                    "_rebuild_wrapper_subclass")
               ? args
               : NULL;
}

bool verl_tensor_is(const struct pickle_value *v)
{
    return wrapped(v, "DTensor") || wrapped(v, "ShardedTensor");
}

/* The shape of the whole tensor: (type, dtype, shape, strides, ...). */
static tp_status read_shape(struct verl_tensor *t, const struct verl_rank *r,
                            const struct pickle_value *args, const char *name, struct tp_err *err)
{
    const struct pickle_value *shape = pickle_item(pickle_item(args, 2), 2);
    const int64_t n = pickle_count(shape);

    if (!pickle_is(shape, PICKLE_TUPLE) || n > BOX_NDIM_MAX)
        return refuse(r, name, "has no shape, or more axes than are supported", err);
    t->ndim = (int)n;
    for (int d = 0; d < t->ndim; d++)
        if (!pickle_int(&t->shape[d], pickle_item(shape, d)) || t->shape[d] < 0)
            return refuse(r, name, "has a negative length", err);
    t->box = box_whole(t->ndim, t->shape);
    return TP_OK;
}

/* ---- meshes ---- */

/* Append the sizes that a value says: a number, or a tuple of such. */
static bool add_sizes(struct verl_mesh *m, const struct pickle_value *v)
{
    const bool list = pickle_is(v, PICKLE_TUPLE);
    const int64_t n = list ? pickle_count(v) : 1;

    for (int64_t i = 0; i < n; i++)
        if (m->ndim == VERL_MESH_AXES_MAX ||
            !pickle_int(&m->size[m->ndim++], list ? pickle_item(v, i) : v))
            return false;
    return true;
}

/* The same for one axis whose ranks are a grid of their own; of one rank that has no sizes. */
static bool add_axis(struct verl_mesh *m, const struct pickle_value *v)
{
    int64_t size, *axis = &m->size[m->ndim];

    if (m->ndim == VERL_MESH_AXES_MAX || !pickle_is(v, PICKLE_TUPLE))
        return false;
    m->ndim++;
    *axis = 1;
    for (int64_t i = 0; i < pickle_count(v); i++)
        if (!pickle_int(&size, pickle_item(v, i)) || __builtin_mul_overflow(*axis, size, axis))
            return false;
    return true;
}

/* torch up to 2.9 has a tensor of ranks; 2.11 a layout with a shape, and 2.15 one with axes that
 * have each a shape. */
static bool read_sizes(struct verl_mesh *m, const struct verl_rank *r, const struct pickle_value *v)
{
    const struct pickle_value *ranks = attribute(v, "mesh"), *layout = attribute(v, "_layout"),
                              *axes = attribute(layout, "axes");
    struct tp_err ignored = { 0 };
    struct torch_tensor t;
    bool ok = true;

    m->ndim = 0;
    if (ranks) {
        ok = !torch_tensor_read(&t, &r->x.torch, ranks, "mesh", &ignored) && t.ndim > 0 &&
             t.ndim <= VERL_MESH_AXES_MAX;
        for (int d = 0; ok && d < t.ndim; d++)
            m->size[m->ndim++] = t.shape[d];
        return ok;
    }
    if (!axes)
        return add_sizes(m, attribute(layout, "shape")) && m->ndim > 0;
    for (int64_t i = 0; ok && i < pickle_count(axes); i++)
        ok = add_axis(m, attribute(pickle_item(axes, i), "shape"));
    return ok && m->ndim > 0;
}

/* The place of a rank in a mesh. */
static void find_place(int64_t at[VERL_MESH_AXES_MAX], const struct verl_mesh *m, int rank)
{
    int64_t left = rank;

    for (int d = m->ndim - 1; d >= 0; d--) {
        at[d] = left % m->size[d];
        left /= m->size[d];
    }
}

/* Ranks are numbered in the mesh's order, as init_device_mesh does, and this one is at its place.
 */
static tp_status check_places(const struct verl_mesh *m, const struct verl_rank *r,
                              const struct pickle_value *v, const char *name, struct tp_err *err)
{
    const struct pickle_value *order = attribute(v, "_flatten_mesh_list"),
                              *place = attribute(v, "_coordinate_on_dim");
    int64_t at[VERL_MESH_AXES_MAX], is;

    order = order ? order : attribute(v, "_flatten_rank_map");
    for (int64_t i = 0; i < pickle_count(order); i++)
        if (!pickle_int(&is, pickle_item(order, i)) || is != i)
            return tp_fail(err, TP_E_USAGE,
                           "%s: tensor %s has a mesh that does not have its ranks in the order "
                           "0, 1, 2, ..., which is not supported",
                           path_of(r), name);
    find_place(at, m, r->rank);
    for (int d = 0; d < m->ndim && d < pickle_count(place); d++)
        if (pickle_int(&is, pickle_item(place, d)) && is != at[d])
            return tp_fail(err, TP_E_CORRUPT,
                           "%s: tensor %s is at place %lld of axis %d of its mesh, but rank %d is "
                           "at place %lld; the file is of another rank: was it renamed?",
                           path_of(r), name, (long long)is, d, r->rank, (long long)at[d]);
    return TP_OK;
}

static tp_status read_mesh(struct verl_rank *r, const struct pickle_value *v, const char *name,
                           struct tp_err *err)
{
    struct verl_mesh *m = &r->mesh;
    int64_t ranks = 1;

    if (v && m->of == v) /* all tensors of a file share it */
        return TP_OK;
    if (strcmp(class_of(v), "DeviceMesh") != 0 || !read_sizes(m, r, v))
        return refuse(r, name, "has a mesh in an unknown form; its version of torch is not known",
                      err);
    for (int d = 0; d < m->ndim; d++)
        if (m->size[d] < 1 || __builtin_mul_overflow(ranks, m->size[d], &ranks))
            return refuse(r, name, "has a mesh with an axis without ranks", err);
    if (ranks != r->world)
        return tp_fail(err, TP_E_CORRUPT,
                       "%s: tensor %s is of a mesh of %lld ranks, but the file's name says %d; "
                       "take all files of one save",
                       path_of(r), name, (long long)ranks, r->world);
    m->of = v;
    return check_places(m, r, v, name, err);
}

/* ---- DTensor ---- */

void verl_tensor_cut(struct box *b, int axis, int64_t parts, int64_t part)
{
    const int64_t rows = b->len[axis] / parts + (b->len[axis] % parts != 0),
                  from = rows > 0 && part > b->len[axis] / rows ? b->len[axis] : rows * part,
                  left = b->len[axis] - (from < b->len[axis] ? from : b->len[axis]);

    b->lo[axis] += b->len[axis] - left;
    b->len[axis] = left < rows ? left : rows;
}

static tp_status place_box(struct verl_tensor *t, const struct verl_rank *r,
                           const struct pickle_value *placements, const char *name,
                           struct tp_err *err)
{
    const struct verl_mesh *m = &r->mesh;
    int64_t at[VERL_MESH_AXES_MAX], axis;

    if (pickle_count(placements) != m->ndim)
        return refuse(r, name, "has not one placement for each axis of its mesh", err);
    find_place(at, m, r->rank);
    for (int d = 0; d < m->ndim; d++) {
        const struct pickle_value *p = pickle_item(placements, d);
        const char *is = class_of(p);

        if (strcmp(is, "Replicate") == 0) {
            t->copy |= at[d] > 0;
            continue;
        }
        if (strcmp(is, "Shard") != 0)
            return tp_fail(err, TP_E_USAGE,
                           "%s: tensor %s has the placement %.40s, which is not supported",
                           path_of(r), name, *is ? is : "of an unknown class");
        if (!pickle_int(&axis, attribute(p, "dim")) || axis < 0 || axis >= t->ndim)
            return refuse(r, name, "is sharded along an axis that it does not have", err);
        verl_tensor_cut(&t->box, (int)axis, m->size[d], at[d]);
    }
    return TP_OK;
}

/* An entry of the state of a DTensor, which is a dict, or (None, dict). */
static const struct pickle_value *state_of(const struct pickle_value *args, const char *key)
{
    const struct pickle_value *state = pickle_item(args, 3), *found = pickle_get(state, key);

    for (int i = 0; i < 2 && !found; i++)
        found = pickle_get(pickle_item(state, i), key);
    return found;
}

static tp_status read_dtensor(struct verl_tensor *t, struct verl_rank *r,
                              const struct pickle_value *args, const char *name, struct tp_err *err)
{
    const struct pickle_value *spec = state_of(args, "_spec");
    tp_status st;

    t->local = state_of(args, "_local_tensor");
    if (!t->local)
        return refuse(r, name, "is a DTensor without its part", err);
    TP_TRY(read_mesh(r, attribute(spec, "mesh"), name, err));
    st = place_box(t, r, attribute(spec, "placements"), name, err);
done:
    return st;
}

int verl_tensor_axis(const struct pickle_value *v)
{
    const struct pickle_value *placements =
        attribute(state_of(wrapped(v, "DTensor"), "_spec"), "placements");
    int64_t axis = -1;

    for (int64_t i = 0; i < pickle_count(placements); i++)
        if (pickle_int(&axis, attribute(pickle_item(placements, i), "dim")))
            return (int)axis;
    return -1;
}

/* ---- ShardedTensor ---- */

static tp_status read_offsets(struct verl_tensor *t, const struct verl_rank *r,
                              const struct pickle_value *shard, const char *name,
                              struct tp_err *err)
{
    const struct pickle_value *where = attribute(shard, "metadata"),
                              *lo = attribute(where, "shard_offsets"),
                              *len = attribute(where, "shard_sizes");
    int64_t end;

    if (pickle_count(lo) != t->ndim || pickle_count(len) != t->ndim)
        return refuse(r, name, "is a ShardedTensor without offsets", err);
    for (int d = 0; d < t->ndim; d++)
        if (!pickle_int(&t->box.lo[d], pickle_item(lo, d)) ||
            !pickle_int(&t->box.len[d], pickle_item(len, d)) || t->box.lo[d] < 0 ||
            t->box.len[d] < 0 || __builtin_add_overflow(t->box.lo[d], t->box.len[d], &end) ||
            end > t->shape[d])
            return refuse(r, name, "has a part that reaches out of it", err);
    return TP_OK;
}

/* (shards of this rank, metadata of all, ...). A rank without rows has no shard. */
static tp_status read_sharded(struct verl_tensor *t, const struct verl_rank *r,
                              const struct pickle_value *args, const char *name, struct tp_err *err)
{
    const struct pickle_value *shards = pickle_item(pickle_item(args, 3), 0);

    if (!pickle_is(shards, PICKLE_LIST) || pickle_count(shards) > 1)
        return refuse(r, name, "is a ShardedTensor that has not one part in each rank", err);
    t->local = NULL;
    if (pickle_count(shards) == 0) {
        t->box.len[0] = 0;
        return TP_OK;
    }
    t->local = attribute(pickle_item(shards, 0), "tensor");
    if (!t->local)
        return refuse(r, name, "is a ShardedTensor without its part", err);
    return read_offsets(t, r, pickle_item(shards, 0), name, err);
}

tp_status verl_tensor_read(struct verl_tensor *out, struct verl_rank *r,
                           const struct pickle_value *v, const char *name, struct tp_err *err)
{
    const struct pickle_value *dtensor = wrapped(v, "DTensor"),
                              *sharded = wrapped(v, "ShardedTensor");
    struct verl_tensor t = { .copy = false };
    tp_status st;

    if (!dtensor && !sharded)
        return refuse(r, name, "is neither a DTensor nor a ShardedTensor", err);
    TP_TRY(read_shape(&t, r, dtensor ? dtensor : sharded, name, err));
    if (sharded && t.ndim == 0)
        return refuse(r, name, "is a ShardedTensor without axes", err);
    st =
        dtensor ? read_dtensor(&t, r, dtensor, name, err) : read_sharded(&t, r, sharded, name, err);
    *out = t;
done:
    return st;
}

tp_status verl_tensor_piece(struct piece *out, struct verl_rank *r, const struct verl_tensor *t,
                            const char *group, const char *name, struct tp_err *err)
{
    char is[SHAPE_TEXT], should[SHAPE_TEXT];
    struct piece p;
    tp_status st = torch_pieces_tensor(&p, &r->x, t->local, group, name, err);

    if (st)
        return st;
    if (p.ndim != t->ndim || memcmp(p.shape, t->box.len, sizeof *p.shape * (size_t)p.ndim) != 0)
        return tp_fail(err, TP_E_CORRUPT,
                       "%s: tensor %s has a part of shape %s, but that of rank %d of %d is %s; "
                       "take all files of one save",
                       path_of(r), name, box_format_shape(is, sizeof is, p.ndim, p.shape), r->rank,
                       r->world, box_format_shape(should, sizeof should, t->ndim, t->box.len));
    memcpy(p.shape, t->shape, sizeof p.shape);
    p.box = t->box;
    *out = p;
    return TP_OK;
}
