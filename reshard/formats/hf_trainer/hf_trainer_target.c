/* reshard/formats/hf_trainer/hf_trainer_target.c - writes checkpoints of transformers' Trainer; see
 * reshard/formats/hf_trainer/hf_trainer.h.
 */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "layout/model_tensors.h"
#include "layout/module_name.h"
#include "reshard/formats/hf_trainer/hf_trainer.h"
#include "reshard/formats/hf_trainer/hf_trainer_files.h"
#include "reshard/formats/hf_trainer/hf_trainer_params.h"
#include "reshard/formats/safetensors/safetensors.h"
#include "reshard/formats/torch/module_param.h"

#define SCHEDULER "scheduler.pt"
#define STATE     "trainer_state.json"

enum { STATE_TEXT = 256 };

struct hf_trainer_target {
    const struct export_contents *q;
    struct piece_target *pieces;
    struct export_contents contents; /* q with the names of transformers 5's modules */
    struct module_param_list list;
    const char *optimizer; /* the name of its file */
    enum hf_trainer_groups groups;
    struct parameter_order_item *params; /* in the order of the groups */
    int n, n_decayed;
    struct piece_extra own_groups; /* param_groups of the source; n 0: it has none */
    double lr;                     /* of the next step */
};

static tp_status begin_file(struct torch_target *x, struct hf_trainer_target *t, const char *name,
                            struct tp_err *err)
{
    int file = 0;
    tp_status st = piece_target_file(t->pieces, &file, name, err);

    if (!st)
        torch_target_begin(x, t->pieces, file, 0);
    return st;
}

/* ---- optimizer.pt ---- */

/* Push a moment of a parameter. */
static tp_status push_moment(struct torch_target *x, const struct hf_trainer_target *t,
                             const struct parameter_order_item *param, const char *group,
                             struct tp_err *err)
{
    const struct module_param *p = module_param_find(&t->list, param->module.name);
    const int missing = p ? module_param_missing(p, group) : 0;
    struct box whole;

    if (missing >= 0)
        return tp_fail(err, TP_E_USAGE,
                       "%s: has no %s/%s, which %s needs; without the optimizer's state export "
                       "safetensors",
                       t->q->source, group,
                       p ? t->q->tensors[p->parts[missing].tensor].name : param->tensor->name,
                       t->optimizer);
    pickle_write_text(&x->save.pickle, group);
    whole = box_whole(p->ndim, p->shape);
    return module_param_push(x, p, group, &whole, err);
}

static tp_status push_states(struct torch_target *x, const struct hf_trainer_target *t,
                             struct tp_err *err)
{
    struct pickle_writer *w = &x->save.pickle;
    tp_status st = TP_OK;

    pickle_write_text(w, "state");
    pickle_write_dict(w);
    for (int i = 0; i < t->n && !st; i++) {
        pickle_write_int(w, i);
        pickle_write_dict(w);
        pickle_write_text(w, "step");
        torch_save_number(&x->save, t->q->optimizer_step);
        st = push_moment(x, t, &t->params[i], GROUP_EXP_AVG, err);
        if (!st)
            st = push_moment(x, t, &t->params[i], GROUP_EXP_AVG_SQ, err);
        pickle_write_op(w, PICKLE_OP_SETITEMS);
    }
    pickle_write_op(w, PICKLE_OP_SETITEMS);
    return st;
}

/* Push the group of parameters first .. end - 1. */
static void push_group(struct pickle_writer *w, const struct hf_trainer_target *t, int first,
                       int end, double decay)
{
    const struct export_adamw *a = &t->q->adamw;

    pickle_write_dict(w);
    torch_target_push_adamw(w, a, t->lr, decay);
    pickle_write_key_float(w, "initial_lr", a->max_lr >= 0 ? a->max_lr : t->lr);
    pickle_write_text(w, "params");
    pickle_write_list(w);
    for (int i = first; i < end; i++)
        pickle_write_int(w, i);
    pickle_write_op(w, PICKLE_OP_APPENDS);
    pickle_write_text(w, "param_names");
    pickle_write_list(w);
    for (int i = first; i < end; i++)
        pickle_write_text(w, t->params[i].module.name);
    pickle_write_op(w, PICKLE_OP_APPENDS);
    pickle_write_op(w, PICKLE_OP_SETITEMS);
}

static tp_status write_optimizer(struct hf_trainer_target *t, struct tp_err *err)
{
    struct torch_target x;
    struct pickle_writer *w = &x.save.pickle;
    tp_status st = begin_file(&x, t, t->optimizer, err);

    if (st)
        return st;
    pickle_write_dict(w);
    st = push_states(&x, t, err);
    pickle_write_text(w, "param_groups");
    if (t->own_groups.n) {
        pickle_write_pushed(w, t->own_groups.bytes, t->own_groups.n);
    } else {
        pickle_write_list(w);
        push_group(w, t, 0, t->n_decayed, t->q->adamw.weight_decay);
        if (t->groups != HF_TRAINER_GROUPS_ONE)
            push_group(w, t, t->n_decayed, t->n, 0);
        pickle_write_op(w, PICKLE_OP_APPENDS);
    }
    pickle_write_op(w, PICKLE_OP_SETITEMS);
    return torch_target_finish(&x, st, err);
}

/* ---- the other files ---- */

/* What a LambdaLR needs to continue; the program's own learning rates and functions stay. Trainer
 * loads the optimizer only where this file is there. */
static tp_status write_scheduler(struct hf_trainer_target *t, struct tp_err *err)
{
    struct torch_target x;
    struct pickle_writer *w = &x.save.pickle;
    tp_status st = begin_file(&x, t, SCHEDULER, err);

    if (st)
        return st;
    pickle_write_dict(w);
    pickle_write_key_int(w, "last_epoch", t->q->step);
    pickle_write_key_int(w, "_step_count", t->q->step + 1);
    pickle_write_text(w, "_last_lr");
    pickle_write_list(w);
    pickle_write_float(w, t->lr);
    pickle_write_float(w, t->lr);
    pickle_write_op(w, PICKLE_OP_APPENDS);
    pickle_write_text(w, "lr_lambdas");
    pickle_write_list(w);
    pickle_write_op(w, PICKLE_OP_NONE);
    pickle_write_op(w, PICKLE_OP_NONE);
    pickle_write_op(w, PICKLE_OP_APPENDS);
    pickle_write_op(w, PICKLE_OP_SETITEMS);
    return torch_target_finish(&x, TP_OK, err);
}

/* Trainer adds to the states of callbacks when it saves, so those that it has must be there. */
#define STATE_FORMAT                                                 \
    "{\n  \"global_step\": %lld,\n  \"log_history\": [],\n"          \
    "  \"stateful_callbacks\": {\n"                                  \
    "    \"EarlyStoppingCallback\": [],\n"                           \
    "    \"TrainerControl\": { \"args\": {}, \"attributes\": {} }\n" \
    "  },\n  \"train_batch_size\": 0\n}\n"

/* Trainer needs a batch size there, and transformers 4 and 5.0 train with it. 0 makes these stop,
 * which is better than another batch size than the program's. */
static tp_status write_state(const struct hf_trainer_target *t, struct tp_err *err)
{
    char path[PATH_MAX], text[STATE_TEXT];
    tp_status st = file_join(path, t->q->dir, STATE, err);

    if (st)
        return st;
    snprintf(text, sizeof text, STATE_FORMAT, (long long)t->q->step);
    progress_note(t->q->progress,
                  STATE " has \"train_batch_size\": 0, because the source does not say it; "
                        "transformers 4 and 5.0 need the program's there");
    return file_write_new(path, text, strlen(text), err);
}

/* Copy the files of a source of the same program, if the step stays the same. */
static tp_status copy_files(bool *schedule, bool *state, const struct hf_trainer_target *t,
                            struct tp_err *err)
{
    struct piece_source *from = t->q->extras;
    tp_status st = TP_OK;

    *schedule = *state = false;
    for (int i = 0; from && piece_source_step(from) == t->q->step && i < piece_source_left(from);
         i++) {
        const char *name = piece_source_left_name(from, i);

        if (!piece_source_left_extra(from, i) ||
            strncmp(name, t->optimizer, strlen(t->optimizer)) == 0)
            continue;
        *schedule |= strcmp(name, SCHEDULER) == 0;
        *state |= strcmp(name, STATE) == 0;
        TP_TRY(hf_trainer_files_copy(from, name, t->q->dir, err));
    }
done:
    return st;
}

/* The schedule and the state of the run: those of a source of Trainer, else new ones. */
static tp_status write_run(struct hf_trainer_target *t, struct tp_err *err)
{
    bool schedule, state;
    tp_status st = copy_files(&schedule, &state, t, err);

    if (!st && !schedule)
        st = write_scheduler(t, err);
    return st || state ? st : write_state(t, err);
}

static tp_status write_weights(struct hf_trainer_target *t, struct tp_err *err)
{
    const struct export_contents *q = t->q;
    int *ids = arena_array(piece_target_arena(t->pieces), (size_t)q->n + 1, sizeof *ids), n = 0;

    if (!ids)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for %d tensors", q->dir, q->n);
    for (int i = 0; i < q->n; i++)
        if (strcmp(q->tensors[i].group, GROUP_PARAM) == 0)
            ids[n++] = i;
    return safetensors_add_files(t->pieces, q->dir, q->tensors, ids, n, q->max_shard_bytes, err);
}

/* List the parameters. */
static tp_status list_params(struct hf_trainer_target *t, struct tp_err *err)
{
    const struct export_contents *q = t->q;
    struct arena *arena = piece_target_arena(t->pieces);
    struct tensor *tensors;
    int n;
    tp_status st;

    if (q->model->family == MODEL_OF_RULES)
        return tp_fail(err, TP_E_USAGE,
                       "%s: the order of this architecture's parameters is not known, by which "
                       "%s knows them; export dcp or safetensors",
                       q->source, t->optimizer);
    t->contents.module_names = true;
    TP_TRY(module_param_list(&t->list, &t->contents, arena, err));
    TP_TRY(model_params(&tensors, &n, q->model, DTYPE_F32, arena, err));
    st = hf_trainer_params_list(&t->params, &t->n, &t->n_decayed, q->model, t->groups, tensors, n,
                                arena, err);
done:
    return st;
}

/* Create what is in the folders of both programs. */
static tp_status write_tensors(struct hf_trainer_target *t, struct tp_err *err)
{
    tp_status st = write_weights(t, err);

    return st ? st : write_optimizer(t, err);
}

static tp_status finish(struct export_writer *w, struct hf_trainer_target *t, struct tp_err *err)
{
    tp_status st = piece_target_plan(t->pieces, err);

    if (st)
        return st;
    *w = piece_target_writer(t->pieces);
    t->pieces = NULL;
    return TP_OK;
}

tp_status hf_trainer_export_create(struct export_writer *w, const struct export_contents *q,
                                   struct tp_err *err)
{
    struct hf_trainer_target t = { .q = q, .contents = *q, .optimizer = "optimizer.pt" };
    tp_status st;

    /* Checkpoints of tp-train record the largest learning rate of the schedule, with which a step
     * could do harm; the schedule of the program gives all later ones. */
    t.lr = q->from_format ? q->adamw.lr : 0;
    TP_TRY(piece_target_new(&t.pieces, q->dir, q->tensors, q->n, err));
    TP_TRY(list_params(&t, err));
    TP_TRY(write_tensors(&t, err));
    TP_TRY(write_run(&t, err));
    st = finish(w, &t, err);
done:
    piece_target_close(t.pieces);
    return st;
}

/* ---- Accelerate ---- */

static enum hf_trainer_groups groups_of(const char *text)
{
    return !text || strcmp(text, "norms") == 0 ? HF_TRAINER_GROUPS_NORMS
           : strcmp(text, "one") == 0          ? HF_TRAINER_GROUPS_ONE
                                               : HF_TRAINER_GROUPS_EXAMPLES;
}

/* The parameter of this name, looked for from `at` on; NULL: there is none. */
static const struct parameter_order_item *find_param(const struct hf_trainer_target *t, int at,
                                                     const char *name)
{
    for (int i = 0; i < t->n; i++)
        if (strcmp(t->params[(at + i) % t->n].tensor->name, name) == 0)
            return &t->params[(at + i) % t->n];
    return NULL;
}

/* Take the groups of a source of Accelerate, and its numbers of parameters. */
static tp_status take_groups(struct hf_trainer_target *t, const struct piece_extra *x,
                             struct tp_err *err)
{
    struct parameter_order_item *params =
        arena_array(piece_target_arena(t->pieces), (size_t)t->n + 1, sizeof *params);
    const char *at = x->bytes;

    if (!params)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for %d parameters", t->q->dir, t->n);
    for (int i = 0; i < t->n; i++, at += strlen(at) + 1) {
        const struct parameter_order_item *found = *at ? find_param(t, i, at) : NULL;

        if (!found)
            return tp_fail(err, TP_E_CORRUPT, "%s: its optimizer has %d parameters, not %d",
                           t->q->source, i, t->n);
        params[i] = *found;
    }
    at++;
    t->params = params;
    t->own_groups = (struct piece_extra){ at, x->n - (size_t)(at - (const char *)x->bytes) };
    return TP_OK;
}

static tp_status take_own_groups(struct hf_trainer_target *t, struct tp_err *err)
{
    const struct piece_source *from = t->q->param_groups ? NULL : t->q->extras;
    tp_status st = TP_OK;

    for (int i = 0; from && i < piece_source_left(from) && !st; i++) {
        const struct piece_extra *x = piece_source_left_extra(from, i);

        if (x && x->n &&
            strncmp(piece_source_left_name(from, i), t->optimizer, strlen(t->optimizer)) == 0)
            st = take_groups(t, x, err);
    }
    return st;
}

/* Accelerate loads a state_dict(), so all names must be those of modules. */
static tp_status check_names(const struct export_contents *q, struct tp_err *err)
{
    if (q->model->family == MODEL_OF_RULES || !module_names_differ(q->model))
        return TP_OK;
    return tp_fail(err, TP_E_USAGE,
                   "%s: the modules of transformers have other names of its tensors than files, "
                   "which accelerate-ddp cannot be written with; export trainer, or accelerate",
                   q->source);
}

tp_status hf_trainer_accelerate_export_create(struct export_writer *w,
                                              const struct export_contents *q, struct tp_err *err)
{
    struct export_contents one_file = *q;
    struct hf_trainer_target t = { .q = &one_file,
                                   .contents = *q,
                                   .optimizer = "optimizer.bin",
                                   .groups = groups_of(q->param_groups),
                                   .lr = q->adamw.lr };
    bool ignored[2];
    tp_status st;

    one_file.max_shard_bytes = 0; /* it loads one */
    TP_TRY(check_names(q, err));
    TP_TRY(piece_target_new(&t.pieces, q->dir, q->tensors, q->n, err));
    TP_TRY(list_params(&t, err));
    TP_TRY(take_own_groups(&t, err));
    TP_TRY(write_tensors(&t, err));
    TP_TRY(copy_files(&ignored[0], &ignored[1], &t, err));
    st = finish(w, &t, err);
done:
    piece_target_close(t.pieces);
    return st;
}
