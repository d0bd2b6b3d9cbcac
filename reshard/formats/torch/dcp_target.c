/* reshard/formats/torch/dcp_target.c - writes a DCP checkpoint; see reshard/formats/torch/dcp.h. */
#include <limits.h>
#include <string.h>

#include "core/file.h"
#include "layout/model_tensors.h"
#include "layout/module_name.h"
#include "reshard/formats/torch/accelerate.h"
#include "reshard/formats/torch/accelerate_names.h"
#include "reshard/formats/torch/dcp.h"
#include "reshard/formats/torch/dcp_adamw.h"
#include "reshard/formats/torch/dcp_extras.h"
#include "reshard/formats/torch/dcp_items.h"
#include "reshard/formats/torch/torchtitan_bias.h"
#include "reshard/formats/torch/torchtitan_map.h"
#include "reshard/formats/torch/torchtitan_piece.h"

/* Whose names, and which folders. */
enum dcp_program { DCP_PLAIN, DCP_TORCHTITAN, DCP_ACCELERATE };

/* The items of one .metadata. */
enum { DCP_FOLDERS_MAX = 2 };

struct dcp_target {
    const struct export_contents *q;
    struct dcp_items folders[DCP_FOLDERS_MAX];
    int n_folders;
    struct arena *arena;
    const char *optimizer; /* how its names begin */
    bool torchtitan;       /* by its names and in its order of rows */
    bool headed;           /* names have MODEL_HEAD already */
};

#define MODEL_HEAD "model."

/* Where weights are, or state of the optimizer. */
static struct dcp_items *items_of(struct dcp_target *t, bool is_state)
{
    return &t->folders[is_state ? t->n_folders - 1 : 0];
}

static tp_status no_memory(const struct dcp_target *t, struct tp_err *err)
{
    return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", t->q->dir);
}

/* Whether names and order of rows are torchtitan's, and not those that rules have. */
static bool is_mapped(const struct dcp_target *t)
{
    return t->torchtitan && t->q->model->family != MODEL_OF_RULES;
}

/* What a parameter is called, by the first name of torchtitan or by another one. Its name is NULL
 * where it has no such name. */
static tp_status name_of(struct torchtitan_map_name *out, const struct dcp_target *t,
                         const struct tensor *param, int which, struct tp_err *err)
{
    tp_status st = TP_OK;

    *out = (struct torchtitan_map_name){ .module = { .name = which ? NULL : param->name,
                                                     .is_first = true } };
    if (is_mapped(t))
        st = torchtitan_map_theirs(out, t->q->model, param, which, t->arena, err);
    else if (!which && t->q->module_names)
        st = module_name_of(&out->module, t->q->model, param, t->arena, err);
    if (!st && !which && !out->module.name)
        st = tp_fail(err, TP_E_USAGE, "%s: torchtitan has no tensor %s; export another format",
                     t->q->source, param->name);
    return st;
}

/* The path of a parameter, or of what `state` names of its state in the optimizer. */
static const char *path_of(const struct dcp_target *t, const char *name, const char *state)
{
    if (!state)
        return t->torchtitan ? name
                             : arena_printf(t->arena, "model" DCP_BELOW "%s",
                                            name + (t->headed ? strlen(MODEL_HEAD) : 0));
    return arena_printf(t->arena,
                        t->torchtitan ? "%s" DCP_BELOW "state.%s.%s"
                                      : "%s" DCP_BELOW "state" DCP_BELOW "%s" DCP_BELOW "%s",
                        t->optimizer, name, state);
}

/* The items from `first` on once more by another name: a second entry for the same bytes. */
static tp_status add_again(struct dcp_items *d, int first, const char *path, struct tp_err *err)
{
    const int n = d->n;
    tp_status st = TP_OK;

    for (int i = first; i < n && !st; i++)
        st = dcp_items_again(d, i, path, err);
    return st;
}

/* The items from `first` on, which are a parameter or its state, by its other names. */
static tp_status add_other_names(struct dcp_target *t, int first, const struct tensor *param,
                                 const char *state, struct tp_err *err)
{
    struct dcp_items *d = items_of(t, state);
    const int n = d->n;
    tp_status st = TP_OK;

    for (int which = 1; which < TORCHTITAN_NAMES && !st; which++) {
        struct torchtitan_map_name other;

        st = name_of(&other, t, param, which, err);
        if (!st && other.module.name && d->n == n)
            st = add_again(d, first, path_of(t, other.module.name, state), err);
    }
    return st;
}

/* ---- query, key and value as one parameter ---- */

/* Whether a tensor is also a part of one parameter, in torchtitan's optimizer. */
static bool is_fused(const struct dcp_target *t, const struct torchtitan_map_tensor *tensor,
                     const char *state)
{
    return is_mapped(t) && state &&
           (tensor->role == ROLE_Q || tensor->role == ROLE_K || tensor->role == ROLE_V);
}

/* Items first .. n - 1, each of which has rows of one key-value head, as boxes of the one
 * parameter. */
static tp_status add_fused(struct dcp_target *t, int first, int n,
                           const struct torchtitan_map_tensor *tensor, const char *state,
                           struct tp_err *err)
{
    const struct model *m = t->q->model;
    struct dcp_items *d = items_of(t, true);
    const char *name = torchtitan_map_fused(tensor->layer, t->arena),
               *path = name ? path_of(t, name, state) : NULL;
    tp_status st = path ? TP_OK : no_memory(t, err);

    for (int i = first; i < n && !st; i++) {
        const int64_t row = d->items[i].item.box.lo[0];
        const struct torchtitan_map_part rows = torchtitan_map_fused_rows(
            m, tensor->role, row / torchtitan_map_fused_rows(m, tensor->role, 0).n);

        st = dcp_items_again_at(d, i, path, torchtitan_map_fused_count(m), rows.at + row - rows.row,
                                err);
    }
    return st;
}

/* The step, or an option, of the query is that of the one parameter. */
static tp_status name_fused(const char **name, const struct dcp_target *t,
                            const struct torchtitan_map_tensor *tensor, struct tp_err *err)
{
    *name = NULL;
    if (!is_fused(t, tensor, "") || tensor->role != ROLE_Q)
        return TP_OK;
    *name = torchtitan_map_fused(tensor->layer, t->arena);
    return *name ? TP_OK : no_memory(t, err);
}

/* ---- tensors ---- */

/* Push a box of a tensor of an expert as a box of the stacked one. */
static tp_status push_stacked(struct torch_target *x, int tensor, enum dtype dtype,
                              const struct dcp_item *item, const struct box *box,
                              struct tp_err *err)
{
    const int storage = torch_save_tensor(&x->save, dtype, item->ndim, item->box.len);

    return torch_target_add(x, storage, tensor, box, 0, err);
}

/* A box of tensor number `tensor`, which the rank stores. */
static tp_status add_box(struct dcp_target *t, int rank, int tensor,
                         const struct torchtitan_map_name *name, const char *path,
                         const struct box *box, struct tp_err *err)
{
    const struct tensor *from = &t->q->tensors[tensor];
    struct dcp_items *d = items_of(t, strcmp(from->group, GROUP_PARAM) != 0);
    const bool pairs = is_mapped(t) && torchtitan_map_has_pairs(t->q->model, name->tensor.role);
    struct dcp_new_item item = dcp_items_object(d, path);
    struct torch_target x;
    tp_status st;

    item.item.is_object = false;
    item.item.dtype = from->dtype;
    item.item.ndim = from->ndim;
    memcpy(item.item.shape, from->shape, sizeof item.item.shape);
    item.item.box = *box;
    if (name->module.is_stacked) {
        memcpy(item.item.shape, name->module.shape, sizeof item.item.shape);
        item.item.box = module_name_box(&name->module, box);
        item.item.ndim = item.item.box.ndim;
    }
    TP_TRY(dcp_items_begin(&x, d, rank, &item, err));
    if (name->module.is_stacked)
        st = push_stacked(&x, tensor, from->dtype, &item.item, box, err);
    else
        st = pairs ? torchtitan_piece_push_pairs(&x, tensor, from->dtype, box,
                                                 t->q->model->head_dim, err)
                   : torch_target_box(&x, tensor, from->dtype, box, err);
    if (st)
        torch_target_free(&x);
    else
        st = dcp_items_end(&x, d, rank, err);
done:
    return st;
}

/* The same; of a part of one parameter each key-value head by itself. */
static tp_status add_boxes(struct dcp_target *t, int rank, int tensor,
                           const struct torchtitan_map_name *name, const char *path,
                           const struct box *box, struct tp_err *err)
{
    const char *group = t->q->tensors[tensor].group;
    const struct model *m = t->q->model;
    tp_status st = TP_OK;

    if (!is_fused(t, &name->tensor, strcmp(group, GROUP_PARAM) == 0 ? NULL : group))
        return add_box(t, rank, tensor, name, path, box, err);
    for (int64_t head = 0; head < m->kv_heads && !st; head++) {
        const struct torchtitan_map_part rows =
            torchtitan_map_fused_rows(m, name->tensor.role, head);
        const struct box whole = { .ndim = box->ndim,
                                   .lo = { rows.row, box->lo[1] },
                                   .len = { rows.n, box->len[1] } };
        struct box part;

        if (box_meet(&part, &whole, box))
            st = add_box(t, rank, tensor, name, path, &part, err);
    }
    return st;
}

/* Whether `rank` is the one that stores its boxes of a tensor: of the ranks with the same boxes
 * the first. */
static bool is_writer(const struct layout *l, const struct tensor *t, int rank)
{
    const struct spec *s = &l->spec;
    const struct mesh_coord at = mesh_coord_of(s, rank);
    const struct layout_owner owner = layout_owner_of(s, t, at);
    const int ep = layout_ep_of(s, t), first = owner.number * (s->dp * s->cp / owner.of);

    return at.dp * s->cp + at.cp == first + (ep > 0 ? ep : 0) &&
           layout_first_holder(t, s, at.tp) == at.tp;
}

/* Name a tensor, or what `state` names of its state in the optimizer. */
static tp_status name_tensor(struct torchtitan_map_name *out, const char **path,
                             struct dcp_target *t, const struct tensor *from, const char *state,
                             struct tp_err *err)
{
    tp_status st = name_of(out, t, from, 0, err);

    if (st)
        return st;
    *path = path_of(t, out->module.name, state);
    return *path ? TP_OK : no_memory(t, err);
}

static tp_status add_tensor(struct dcp_target *t, int tensor, struct tp_err *err)
{
    const struct layout *l = t->q->layout;
    const struct tensor *from = &l->tensors[tensor];
    const char *state = strcmp(from->group, GROUP_PARAM) == 0 ? NULL : from->group, *path;
    const int first = items_of(t, state)->n;
    const struct box whole = box_whole(from->ndim, from->shape);
    struct box boxes[TENSOR_BOXES_MAX];
    struct torchtitan_map_name name;
    int end;
    tp_status st;

    TP_TRY(name_tensor(&name, &path, t, from, state, err));
    for (int rank = 0; rank < spec_world(&l->spec); rank++) {
        const int n = is_writer(l, from, rank) ? layout_boxes(l, tensor, rank, boxes) : 0;

        for (int i = 0; i < n; i++)
            TP_TRY(add_boxes(t, rank, tensor, &name, path, &boxes[i], err));
    }
    if (box_is_empty(&whole)) /* no rank stores any of it */
        TP_TRY(add_box(t, 0, tensor, &name, path, &whole, err));
    end = items_of(t, state)->n;
    TP_TRY(add_other_names(t, first, from, state, err));
    if (is_fused(t, &name.tensor, state))
        st = add_fused(t, first, end, &name.tensor, state, err);
done:
    return st;
}

/* ---- what is not a tensor of the model ---- */

/* The tensor that a tied head is; NULL: the model has no such head. */
static tp_status find_embedding(const char **name, struct dcp_target *t, struct tp_err *err)
{
    struct tensor *params;
    int n;
    tp_status st;

    *name = NULL;
    if (t->q->model->family == MODEL_OF_RULES || !t->q->model->tied)
        return TP_OK;
    st = model_params(&params, &n, t->q->model, DTYPE_F32, t->arena, err);
    for (int i = 0; i < n && !st && !*name; i++)
        if (params[i].role == ROLE_EMBEDDING)
            *name = params[i].name;
    return st;
}

/* A tied head has no tensor here, but a program's state dict has both names. */
static tp_status add_tied_head(struct dcp_target *t, int first, struct tp_err *err)
{
    struct dcp_items *d = items_of(t, false);
    const struct tensor head = { .name = "lm_head.weight" };
    const int n = d->n;
    struct torchtitan_map_name name;
    tp_status st;

    TP_TRY(name_of(&name, t, &head, 0, err));
    TP_TRY(add_again(d, first, path_of(t, name.module.name, NULL), err));
    st = add_other_names(t, n, &head, NULL, err);
done:
    return st;
}

/* The step of a parameter, a tensor of no axes, in the file of rank 0. */
static tp_status add_step(struct dcp_target *t, const struct tensor *param, struct tp_err *err)
{
    struct dcp_items *d = items_of(t, true);
    const int first = d->n;
    struct torchtitan_map_name name;
    const char *path, *fused;
    struct dcp_new_item item;
    struct torch_target x;
    tp_status st;

    TP_TRY(name_tensor(&name, &path, t, param, "step", err));
    if (!name.module.is_first)
        goto done;
    item = dcp_items_object(d, path);
    item.item.is_object = false;
    item.item.dtype = torch_save_number_dtype(t->q->optimizer_step);
    TP_TRY(dcp_items_begin(&x, d, 0, &item, err));
    torch_save_number(&x.save, t->q->optimizer_step);
    TP_TRY(dcp_items_end(&x, d, 0, err));
    TP_TRY(add_other_names(t, first, param, "step", err));
    TP_TRY(name_fused(&fused, t, &name.tensor, err));
    if (fused)
        st = dcp_items_again(d, first, path_of(t, fused, "step"), err);
done:
    return st;
}

/* The options of a parameter by all of its names. */
static tp_status add_param_options(struct dcp_target *t, const struct tensor *param, int *first,
                                   struct tp_err *err)
{
    struct dcp_items *d = items_of(t, true);
    struct torchtitan_map_name name;
    const char *fused;
    tp_status st = TP_OK;

    for (int which = 0; which < TORCHTITAN_NAMES; which++) {
        TP_TRY(name_of(&name, t, param, which, err));
        if (name.module.name && name.module.is_first)
            TP_TRY(dcp_adamw_add_param(d, t->q, name.module.name, first, err));
    }
    TP_TRY(name_fused(&fused, t, &name.tensor, err));
    if (fused)
        st = dcp_adamw_add_param(d, t->q, fused, first, err);
done:
    return st;
}

static tp_status add_all_options(struct dcp_target *t, struct tp_err *err)
{
    int first = -1;
    tp_status st = TP_OK;

    for (int i = 0; i < t->q->n && !st; i++)
        if (strcmp(t->q->tensors[i].group, GROUP_PARAM) == 0)
            st = add_param_options(t, &t->q->tensors[i], &first, err);
    return st;
}

/* ---- as a format of tp-ckpt export ---- */

static tp_status add_options(struct dcp_target *t, enum dcp_program program, struct tp_err *err)
{
    if (program == DCP_TORCHTITAN)
        return add_all_options(t, err);
    if (program == DCP_ACCELERATE)
        return dcp_adamw_add_groups(items_of(t, true), t->q, t->optimizer, err);
    return dcp_adamw_add_group(items_of(t, true), t->q, err);
}

static tp_status add_all(struct dcp_target *t, enum dcp_program program, struct tp_err *err)
{
    const struct export_contents *q = t->q;
    const struct dcp_extras_target to = { items_of(t, false), items_of(t, true), t->optimizer,
                                          q->extras && module_names_differ(q->model) &&
                                              q->module_names !=
                                                  piece_source_has_module_names(q->extras) };
    const char *embedding;
    bool moments = false, groups = false;
    tp_status st;

    TP_TRY(find_embedding(&embedding, t, err));
    for (int i = 0; i < q->n; i++) {
        const int first = items_of(t, false)->n;

        TP_TRY(add_tensor(t, i, err));
        if (strcmp(q->tensors[i].group, GROUP_PARAM) != 0)
            moments = true;
        else if (embedding && strcmp(q->tensors[i].name, embedding) == 0)
            TP_TRY(add_tied_head(t, first, err));
    }
    for (int i = 0; i < q->n && moments; i++) /* what is not trained has no step */
        if (strcmp(q->tensors[i].group, GROUP_PARAM) == 0 &&
            layout_find(q->layout, GROUP_EXP_AVG, q->tensors[i].name) >= 0)
            TP_TRY(add_step(t, &q->tensors[i], err));
    TP_TRY(dcp_extras_write(&to, &groups, q->extras, err));
    if (is_mapped(t))
        TP_TRY(torchtitan_bias_add(items_of(t, false), q->model, err));
    if (moments && !groups)
        TP_TRY(add_options(t, program, err));
done:
    return st;
}

/* Whether a DCP without an optimizer was read, so that the "model." of a program's state dict is
 * still in the names of an unknown model's weights. */
static bool has_headed_names(const struct export_contents *q)
{
    if (q->model->family != MODEL_OF_RULES || !q->from_format || strcmp(q->from_format, "dcp") != 0)
        return false;
    for (int i = 0; i < q->n; i++)
        if (strncmp(q->tensors[i].name, MODEL_HEAD, strlen(MODEL_HEAD)) != 0 ||
            strcmp(q->tensors[i].group, GROUP_PARAM) != 0)
            return false;
    return true;
}

/* Write .metadata of each folder that has anything. */
static tp_status write_metadata(struct dcp_target *t, struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int i = 0; i < t->n_folders && !st; i++) {
        struct dcp_items *d = &t->folders[i];
        char dir[PATH_MAX];

        st = file_join(dir, t->q->dir, d->folder, err);
        if (t->q->module_names || is_mapped(t))
            dcp_items_sort(d);
        if (!st && d->n > 0)
            st = dcp_items_write(d, d->folder[0] ? dir : t->q->dir, err);
    }
    return st;
}

static tp_status create(struct export_writer *w, const struct export_contents *q,
                        enum dcp_program program, struct tp_err *err)
{
    static const char *const folders[] = { ACCELERATE_WEIGHTS "/", ACCELERATE_OPTIMIZER "/" };
    struct dcp_target t = { .q = q,
                            .n_folders = program == DCP_ACCELERATE ? 2 : 1,
                            .torchtitan = program == DCP_TORCHTITAN,
                            .optimizer = program == DCP_PLAIN ? "optim" : "optimizer",
                            .headed = has_headed_names(q) };
    struct piece_target *pieces = NULL;
    tp_status st;

    TP_TRY(piece_target_new(&pieces, q->dir, q->tensors, q->n, err));
    t.arena = piece_target_arena(pieces);
    for (int i = 0; i < t.n_folders; i++)
        TP_TRY(dcp_items_make(&t.folders[i], pieces, program == DCP_ACCELERATE ? folders[i] : "",
                              spec_world(&q->layout->spec), err));
    TP_TRY(add_all(&t, program, err));
    TP_TRY(write_metadata(&t, err));
    if (program == DCP_ACCELERATE)
        TP_TRY(accelerate_write_files(pieces, q, err));
    TP_TRY(piece_target_plan(pieces, err));
    *w = piece_target_writer(pieces);
    pieces = NULL;
done:
    for (int i = 0; i < t.n_folders; i++)
        dcp_items_free(&t.folders[i]);
    piece_target_close(pieces);
    return st;
}

tp_status dcp_export_create(struct export_writer *w, const struct export_contents *q,
                            struct tp_err *err)
{
    return create(w, q, DCP_PLAIN, err);
}

tp_status accelerate_export_create(struct export_writer *w, const struct export_contents *q,
                                   struct tp_err *err)
{
    return create(w, q, DCP_ACCELERATE, err);
}

tp_status torchtitan_export_create(struct export_writer *w, const struct export_contents *q,
                                   struct tp_err *err)
{
    tp_status st = TP_OK;

    if (q->model->family != MODEL_OF_RULES)
        st = torchtitan_check_model(q->model, q->source, err);
    return st ? st : create(w, q, DCP_TORCHTITAN, err);
}
