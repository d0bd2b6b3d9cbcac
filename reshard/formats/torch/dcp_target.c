/* reshard/formats/torch/dcp_target.c - writes a DCP checkpoint; see reshard/formats/torch/dcp.h. */
#include <string.h>

#include "layout/model_tensors.h"
#include "reshard/formats/torch/dcp.h"
#include "reshard/formats/torch/dcp_items.h"

struct dcp_target {
    const struct export_contents *q;
    struct dcp_items items;
    struct arena *arena;
};

static tp_status no_memory(const struct dcp_target *t, struct tp_err *err)
{
    return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", t->q->dir);
}

/* An object of this path. */
static struct dcp_new_item item_of(struct dcp_target *t, const char *path)
{
    return (struct dcp_new_item){
        .item = { .name = dcp_items_name(&t->items, path), .is_object = true }, .path = path
    };
}

/* A box of tensor number `tensor`, which the rank stores. */
static tp_status add_box(struct dcp_target *t, int rank, int tensor, const char *path,
                         const struct box *box, struct tp_err *err)
{
    const struct tensor *from = &t->q->tensors[tensor];
    struct dcp_new_item item = item_of(t, path);
    struct torch_target x;
    tp_status st;

    item.item.is_object = false;
    item.item.dtype = from->dtype;
    item.item.ndim = from->ndim;
    memcpy(item.item.shape, from->shape, sizeof item.item.shape);
    item.item.box = *box;
    TP_TRY(dcp_items_begin(&x, &t->items, rank, &item, err));
    st = torch_target_box(&x, tensor, from->dtype, box, err);
    if (st)
        torch_target_free(&x);
    else
        st = dcp_items_end(&x, &t->items, rank, err);
done:
    return st;
}

/* Whether `rank` is the one that stores its boxes of a tensor: of the ranks with the same boxes
 * the first. */
static bool is_writer(const struct layout *l, const struct tensor *t, int rank)
{
    const struct mesh_coord at = mesh_coord_of(&l->spec, rank);

    return at.cp == 0 && (at.dp == 0 || layout_is_dp_sharded(&l->spec, t)) &&
           layout_first_holder(t, &l->spec, at.tp) == at.tp;
}

static tp_status add_tensor(struct dcp_target *t, int tensor, struct tp_err *err)
{
    const struct layout *l = t->q->layout;
    const struct tensor *from = &l->tensors[tensor];
    const char *path = strcmp(from->group, GROUP_PARAM) == 0
                           ? arena_printf(t->arena, "model/%s", from->name)
                           : arena_printf(t->arena, "optim/state/%s/%s", from->name, from->group);
    struct box boxes[TENSOR_BOXES_MAX];
    tp_status st = TP_OK;

    if (!path)
        return no_memory(t, err);
    for (int rank = 0; rank < spec_world(&l->spec) && !st; rank++) {
        const int n = is_writer(l, from, rank) ? layout_boxes(l, tensor, rank, boxes) : 0;

        for (int i = 0; i < n && !st; i++)
            st = add_box(t, rank, tensor, path, &boxes[i], err);
    }
    return st;
}

/* ---- what is no tensor of the model ---- */

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

/* A tied head has no tensor here, but a program's state dict has both names: a second entry for
 * the same bytes. */
static tp_status add_tied_head(struct dcp_target *t, int first, struct tp_err *err)
{
    const int n = t->items.n;
    tp_status st = TP_OK;

    for (int i = first; i < n && !st; i++) {
        struct dcp_new_item item = item_of(t, "model/lm_head.weight");
        const char *name = item.item.name;

        item.item = t->items.items[i].item;
        item.item.name = name;
        st = dcp_items_add(&t->items, &item, err);
    }
    return st;
}

/* The step of a parameter, an f32 of no axes, in the file of rank 0. */
static tp_status add_step(struct dcp_target *t, const struct tensor *param, struct tp_err *err)
{
    struct dcp_new_item item =
        item_of(t, arena_printf(t->arena, "optim/state/%s/step", param->name));
    struct torch_target x;
    tp_status st;

    item.item.is_object = false;
    item.item.dtype = DTYPE_F32;
    st = dcp_items_begin(&x, &t->items, 0, &item, err);
    if (st)
        return st;
    torch_save_number(&x.save, (float)t->q->step);
    return dcp_items_end(&x, &t->items, 0, err);
}

/* The names of all parameters, a list. */
static void push_names(struct pickle_writer *w, const struct export_contents *q)
{
    pickle_write_op(w, PICKLE_OP_EMPTY_LIST);
    pickle_write_op(w, PICKLE_OP_MARK);
    for (int i = 0; i < q->n; i++)
        if (strcmp(q->tensors[i].group, GROUP_PARAM) == 0)
            pickle_write_text(w, q->tensors[i].name);
    pickle_write_op(w, PICKLE_OP_APPENDS);
}

static void push_betas(struct pickle_writer *w, const struct export_contents *q)
{
    pickle_write_op(w, PICKLE_OP_MARK);
    pickle_write_float(w, q->adamw.beta1);
    pickle_write_float(w, q->adamw.beta2);
    pickle_write_op(w, PICKLE_OP_TUPLE);
}

static void push_lr(struct pickle_writer *w, const struct export_contents *q)
{
    pickle_write_float(w, q->adamw.lr);
}

static void push_eps(struct pickle_writer *w, const struct export_contents *q)
{
    pickle_write_float(w, q->adamw.eps);
}

static void push_decay(struct pickle_writer *w, const struct export_contents *q)
{
    pickle_write_float(w, q->adamw.weight_decay);
}

static void push_true(struct pickle_writer *w, const struct export_contents *q)
{
    (void)q;
    pickle_write_op(w, PICKLE_OP_TRUE);
}

static void push_false(struct pickle_writer *w, const struct export_contents *q)
{
    (void)q;
    pickle_write_op(w, PICKLE_OP_FALSE);
}

static void push_none(struct pickle_writer *w, const struct export_contents *q)
{
    (void)q;
    pickle_write_op(w, PICKLE_OP_NONE);
}

/* torch.optim.AdamW's parameter group, as get_optimizer_state_dict returns it. */
static const struct {
    const char *path;
    void (*push)(struct pickle_writer *w, const struct export_contents *q);
} adamw_group[] = {
    { "optim/param_groups/0/lr", push_lr },
    { "optim/param_groups/0/betas", push_betas },
    { "optim/param_groups/0/eps", push_eps },
    { "optim/param_groups/0/weight_decay", push_decay },
    { "optim/param_groups/0/amsgrad", push_false },
    { "optim/param_groups/0/maximize", push_false },
    { "optim/param_groups/0/foreach", push_none },
    { "optim/param_groups/0/capturable", push_false },
    { "optim/param_groups/0/differentiable", push_false },
    { "optim/param_groups/0/fused", push_none },
    { "optim/param_groups/0/decoupled_weight_decay", push_true },
    { "optim/param_groups/0/params", push_names },
};

static tp_status add_group(struct dcp_target *t, struct tp_err *err)
{
    tp_status st = TP_OK;

    for (size_t i = 0; i < sizeof adamw_group / sizeof *adamw_group && !st; i++) {
        const struct dcp_new_item item = item_of(t, adamw_group[i].path);
        struct torch_target x;

        TP_TRY(dcp_items_begin(&x, &t->items, 0, &item, err));
        adamw_group[i].push(&x.save.pickle, t->q);
        st = dcp_items_end(&x, &t->items, 0, err);
    }
done:
    return st;
}

/* ---- as a format of tp-ckpt export ---- */

static tp_status add_all(struct dcp_target *t, struct tp_err *err)
{
    const struct export_contents *q = t->q;
    const char *embedding;
    bool moments = false;
    tp_status st;

    TP_TRY(find_embedding(&embedding, t, err));
    for (int i = 0; i < q->n; i++) {
        const int first = t->items.n;

        TP_TRY(add_tensor(t, i, err));
        if (strcmp(q->tensors[i].group, GROUP_PARAM) != 0)
            moments = true;
        else if (embedding && strcmp(q->tensors[i].name, embedding) == 0)
            TP_TRY(add_tied_head(t, first, err));
    }
    for (int i = 0; i < q->n && moments; i++)
        if (strcmp(q->tensors[i].group, GROUP_PARAM) == 0)
            TP_TRY(add_step(t, &q->tensors[i], err));
    if (moments)
        TP_TRY(add_group(t, err));
done:
    return st;
}

tp_status dcp_export_create(struct export_writer *w, const struct export_contents *q,
                            struct tp_err *err)
{
    struct dcp_target t = { .q = q };
    struct piece_target *pieces = NULL;
    tp_status st;

    TP_TRY(piece_target_new(&pieces, q->dir, q->tensors, q->n, err));
    t.arena = piece_target_arena(pieces);
    TP_TRY(dcp_items_make(&t.items, pieces, "", spec_world(&q->layout->spec), err));
    TP_TRY(add_all(&t, err));
    TP_TRY(dcp_items_write(&t.items, q->dir, err));
    TP_TRY(piece_target_plan(pieces, err));
    *w = piece_target_writer(pieces);
    pieces = NULL;
done:
    dcp_items_free(&t.items);
    piece_target_close(pieces);
    return st;
}
