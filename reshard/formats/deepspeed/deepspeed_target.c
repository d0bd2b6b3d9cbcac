/* reshard/formats/deepspeed/deepspeed_target.c - writes DeepSpeed Universal; see
 * reshard/formats/deepspeed/deepspeed.h.
 */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "reshard/formats/deepspeed/deepspeed.h"
#include "reshard/formats/torch/module_param.h"

/* The version whose keys are written; readers want one that is not old. */
#define DS_VERSION "0.19.8"

enum { TAG_BYTES = 48, NAME_BYTES = PATH_MAX };

struct deepspeed_target {
    const struct export_contents *q;
    struct piece_target *pieces;
    struct module_param_list list;
    char tag[TAG_BYTES]; /* "global_step100_universal" */
};

/* Begin a file of the checkpoint's folder. */
static tp_status begin_file(struct torch_target *x, struct deepspeed_target *t, const char *name,
                            struct tp_err *err)
{
    char path[NAME_BYTES];
    int file = 0;
    tp_status st;

    if (snprintf(path, sizeof path, "%s/%s", t->tag, name) >= (int)sizeof path)
        return tp_fail(err, TP_E_USAGE, "%.100s...: the name is too long", name);
    st = piece_target_file(t->pieces, &file, path, err);
    if (!st)
        torch_target_begin(x, t->pieces, file, 0);
    return st;
}

/* Push a whole parameter. */
static tp_status push_param(struct torch_target *x, const struct module_param *p, const char *group,
                            struct tp_err *err)
{
    const struct box whole = box_whole(p->ndim, p->shape);

    return module_param_push(x, p, group, &whole, err);
}

/* ---- a folder for each parameter ---- */

/* zero/NAME/FILE: {"cat_dim": 0, "param": tensor}, where cat_dim is of parts that there are not. */
static tp_status write_tensor(struct deepspeed_target *t, const struct module_param *p,
                              const char *file, const char *group, struct tp_err *err)
{
    char path[NAME_BYTES];
    struct torch_target x;
    tp_status st;

    snprintf(path, sizeof path, "zero/%s/%s", p->name, file);
    st = begin_file(&x, t, path, err);
    if (st)
        return st;
    pickle_write_dict(&x.save.pickle);
    pickle_write_key_int(&x.save.pickle, "cat_dim", 0);
    pickle_write_text(&x.save.pickle, "param");
    st = push_param(&x, p, group, err);
    pickle_write_op(&x.save.pickle, PICKLE_OP_SETITEMS);
    return torch_target_finish(&x, st, err);
}

static tp_status write_step(struct deepspeed_target *t, const char *name, struct tp_err *err)
{
    char path[NAME_BYTES];
    struct torch_target x;
    tp_status st;

    snprintf(path, sizeof path, "zero/%s/step.pt", name);
    st = begin_file(&x, t, path, err);
    if (st)
        return st;
    torch_save_number(&x.save, t->q->optimizer_step);
    return torch_target_finish(&x, TP_OK, err);
}

/* Weights in f32 are their own masters: they are in fp32.pt and in the module. */
static tp_status write_param(struct deepspeed_target *t, const struct module_param *p,
                             struct tp_err *err)
{
    static const struct {
        const char *group, *file;
    } files[] = { { GROUP_MASTER, "fp32.pt" },
                  { GROUP_EXP_AVG, "exp_avg.pt" },
                  { GROUP_EXP_AVG_SQ, "exp_avg_sq.pt" } };
    const struct tensor *tensors = t->q->tensors;
    tp_status st = TP_OK;

    if (!file_name_is_plain(p->name))
        return tp_fail(err, TP_E_USAGE,
                       "%s: tensor %.200s cannot be the name of a folder, and DeepSpeed Universal "
                       "has one for each tensor; export another format",
                       t->q->source, p->name);

    for (int i = 0; i < 3 && !st; i++) {
        const char *group = files[i].group;
        int missing = module_param_missing(p, group);

        if (missing >= 0 && i == 0 && tensors[p->parts[missing].tensor].dtype == DTYPE_F32) {
            group = GROUP_PARAM;
            missing = -1;
        }
        if (missing >= 0)
            return tp_fail(err, TP_E_USAGE,
                           "%s: has no %s/%s, which DeepSpeed Universal needs; without the "
                           "optimizer's state export another format",
                           t->q->source, group, tensors[p->parts[missing].tensor].name);
        st = write_tensor(t, p, files[i].file, group, err);
    }
    return st ? st : write_step(t, p->name, err);
}

/* ---- files of all parameters ---- */

static void push_shapes(struct pickle_writer *w, const struct deepspeed_target *t)
{
    pickle_write_text(w, "param_shapes");
    pickle_write_list(w);
    pickle_write_ordered_dict(w);
    for (int i = 0; i < t->list.n; i++) {
        pickle_write_text(w, t->list.params[i].name);
        pickle_write_global(w, "torch", "Size");
        pickle_write_op(w, PICKLE_OP_MARK);
        pickle_write_ints(w, t->list.params[i].shape, t->list.params[i].ndim);
        pickle_write_op(w, PICKLE_OP_TUPLE);
        pickle_write_op(w, PICKLE_OP_REDUCE);
    }
    pickle_write_op(w, PICKLE_OP_SETITEMS);
    pickle_write_op(w, PICKLE_OP_APPENDS);
}

static void push_engine(struct pickle_writer *w, const struct deepspeed_target *t)
{
    static const char *const nothing[] = {
        "optimizer",    "frozen_param_shapes", "frozen_param_fragments",
        "lr_scheduler", "data_sampler",        "random_ltd"
    };

    pickle_write_text(w, "buffer_names");
    pickle_write_op(w, PICKLE_OP_EMPTY_LIST);
    for (size_t i = 0; i < sizeof nothing / sizeof *nothing; i++)
        pickle_write_key_none(w, nothing[i]);
    pickle_write_text(w, "shared_params");
    pickle_write_op(w, PICKLE_OP_EMPTY_DICT);
    pickle_write_key_int(w, "skipped_steps", 0);
    pickle_write_key_int(w, "global_steps", t->q->step);
    pickle_write_key_int(w, "global_samples", 0);
    pickle_write_key_int(w, "dp_world_size", 1);
    pickle_write_key_int(w, "mp_world_size", 1);
    pickle_write_text(w, "ds_config");
    pickle_write_op(w, PICKLE_OP_EMPTY_DICT);
    pickle_write_text(w, "ds_version");
    pickle_write_text(w, DS_VERSION);
}

static tp_status write_model_states(struct deepspeed_target *t, struct tp_err *err)
{
    struct torch_target x;
    struct pickle_writer *w = &x.save.pickle;
    tp_status st = begin_file(&x, t, "mp_rank_00_model_states.pt", err);

    if (st)
        return st;
    pickle_write_dict(w);
    pickle_write_text(w, "module");
    pickle_write_ordered_dict(w);
    for (int i = 0; i < t->list.n && !st; i++) {
        pickle_write_text(w, t->list.params[i].name);
        st = push_param(&x, &t->list.params[i], GROUP_PARAM, err);
    }
    pickle_write_op(w, PICKLE_OP_SETITEMS);
    push_shapes(w, t);
    push_engine(w, t);
    pickle_write_op(w, PICKLE_OP_SETITEMS);
    return torch_target_finish(&x, st, err);
}

/* ZeRO-3 has a file for each rank, without weights. All ranks that load Universal read that of
 * rank 0, however many they are. */
static tp_status write_rank_states(struct deepspeed_target *t, struct tp_err *err)
{
    struct torch_target x;
    struct pickle_writer *w = &x.save.pickle;
    tp_status st = begin_file(&x, t, "zero_pp_rank_0_mp_rank_00_model_states.pt", err);

    if (st)
        return st;
    pickle_write_dict(w);
    pickle_write_text(w, "module");
    pickle_write_dict(w);
    pickle_write_op(w, PICKLE_OP_SETITEMS);
    push_shapes(w, t);
    push_engine(w, t);
    pickle_write_op(w, PICKLE_OP_SETITEMS);
    return torch_target_finish(&x, TP_OK, err);
}

static void push_groups(struct pickle_writer *w, const struct export_adamw *a)
{
    const int64_t params[] = { 0 };

    pickle_write_text(w, "param_groups");
    pickle_write_list(w);
    pickle_write_dict(w);
    pickle_write_key_float(w, "lr", a->lr);
    pickle_write_key_floats(w, "betas", a->beta1, a->beta2);
    pickle_write_key_float(w, "eps", a->eps);
    pickle_write_key_float(w, "weight_decay", a->weight_decay);
    pickle_write_text(w, "params");
    pickle_write_ints(w, params, 1);
    pickle_write_op(w, PICKLE_OP_SETITEMS);
    pickle_write_op(w, PICKLE_OP_APPENDS);
}

/* The optimizer without its tensors. ZeRO-1 and ZeRO-2 read the groups, and the steps from the
 * folders of parameters; ZeRO-3 reads both from optimizer_state_dict. */
static tp_status write_optimizer(struct deepspeed_target *t, struct tp_err *err)
{
    struct torch_target x;
    struct pickle_writer *w = &x.save.pickle;
    tp_status st = begin_file(&x, t, "zero/optimizer_state.pt", err);

    if (st)
        return st;
    pickle_write_dict(w);
    pickle_write_text(w, "ds_version");
    pickle_write_text(w, DS_VERSION);
    push_groups(w, &t->q->adamw);
    pickle_write_text(w, "optimizer_state_dict");
    pickle_write_dict(w);
    pickle_write_text(w, "state");
    pickle_write_dict(w);
    pickle_write_int(w, 0);
    pickle_write_dict(w);
    pickle_write_text(w, "step");
    torch_save_number(&x.save, t->q->optimizer_step);
    pickle_write_op(w, PICKLE_OP_SETITEMS);
    pickle_write_op(w, PICKLE_OP_SETITEMS);
    push_groups(w, &t->q->adamw);
    pickle_write_op(w, PICKLE_OP_SETITEMS);
    pickle_write_op(w, PICKLE_OP_SETITEMS);
    return torch_target_finish(&x, TP_OK, err);
}

static tp_status write_latest(const struct deepspeed_target *t, struct tp_err *err)
{
    char path[PATH_MAX];
    tp_status st = file_join(path, t->q->dir, "latest_universal", err);

    return st ? st : file_write_new(path, t->tag, strlen(t->tag), err);
}

tp_status deepspeed_export_create(struct export_writer *w, const struct export_contents *q,
                                  struct tp_err *err)
{
    struct deepspeed_target t = { .q = q };
    tp_status st;

    snprintf(t.tag, sizeof t.tag, "global_step%lld_universal", (long long)q->step);
    TP_TRY(piece_target_new(&t.pieces, q->dir, q->tensors, q->n, err));
    TP_TRY(module_param_list(&t.list, q, piece_target_arena(t.pieces), err));
    for (int i = 0; i < t.list.n; i++)
        TP_TRY(write_param(&t, &t.list.params[i], err));
    TP_TRY(write_model_states(&t, err));
    TP_TRY(write_rank_states(&t, err));
    TP_TRY(write_optimizer(&t, err));
    TP_TRY(write_latest(&t, err));
    TP_TRY(piece_target_plan(t.pieces, err));
    *w = piece_target_writer(t.pieces);
    t.pieces = NULL;
done:
    piece_target_close(t.pieces);
    return st;
}
