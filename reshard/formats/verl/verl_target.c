/*
 * reshard/formats/verl/verl_target.c - writes files of verl for another number of ranks;
 * see reshard/formats/verl/verl.h. Everything but tensors and meshes is as in the files of the
 * source's rank 0, which are open meanwhile.
 */
#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "reshard/formats/pieces/compiled_name.h"
#include "reshard/formats/verl/verl.h"
#include "reshard/formats/verl/verl_flat.h"
#include "reshard/formats/verl/verl_form.h"
#include "reshard/formats/verl/verl_state.h"
#include "torch/pickle_copy.h"

enum { JSON_TEXT = 96 };

/* A tensor of model.state_dict(). */
struct verl_entry {
    const char *key;
    const struct pickle_value *v;
    const struct module_param *param;
    int axis;      /* that is cut; -1: a buffer, which all ranks have */
    int64_t begin; /* of the part in the source's file, which tied tensors share */
};

struct verl_target {
    const struct export_contents *q;
    struct piece_target *pieces;
    struct verl_rank model, optim, extra; /* of the source; without a root: there is none */
    struct verl_mesh mesh;
    struct export_contents contents; /* q with the names that the source has */
    struct module_param_list list;
    int world, shards;
    struct verl_entry *entries;
    int n;
    int *numbers; /* entries by their numbers in the optimizer */
    int n_numbers;
    bool flat; /* the optimizer has FSDP1's units */
    struct verl_state d;
    struct verl_units units;
    const struct module_param **params; /* of each entry */
};

static tp_status no_memory(const struct verl_target *t, struct tp_err *err)
{
    return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", t->q->dir);
}

/* ---- the source ---- */

/* Read a file of rank 0 again; one that the source does not have leaves r as it is. */
static tp_status open_source(struct verl_rank *r, const struct verl_target *t, const char *kind,
                             int world, struct tp_err *err)
{
    struct file_table *files = piece_source_files(t->q->extras);
    char name[VERL_NAME_BYTES];
    size_t n;

    verl_file_name(name, kind, world, 0);
    n = strlen(name);
    for (int i = 0; i < file_table_count(files); i++) {
        const char *path = file_table_path(files, i);
        const size_t length = strlen(path);

        if (length > n && strcmp(path + length - n, name) == 0 && path[length - n - 1] == '/') {
            *r = (struct verl_rank){ .x.source = t->q->extras, .world = world };
            return torch_pieces_open(&r->x, t->q->extras, i, 0, -1, err);
        }
    }
    return TP_OK;
}

/* Whether two entries are one tensor: FSDP2's share their bytes, and of FSDP1's a tied head has a
 * copy, which was compared. */
static bool is_tied(const struct verl_target *t, const struct verl_entry *a,
                    const struct verl_entry *b, const struct verl_tensor *as)
{
    const struct module_param *p = b->param;

    return a->begin == b->begin ||
           (t->q->model->family != MODEL_OF_RULES && t->q->model->tied &&
            strcmp(a->key, "lm_head.weight") == 0 && p->ndim == as->ndim &&
            memcmp(p->shape, as->shape, sizeof *as->shape * (size_t)as->ndim) == 0);
}

/* The parameter that an entry is. One that is tied to an entry before it has none of its own. */
static tp_status find_param(struct verl_target *t, struct verl_entry *e,
                            const struct verl_tensor *as, struct tp_err *err)
{
    const char *plain = compiled_name_plain(piece_target_arena(t->pieces), e->key);

    if (!plain)
        return no_memory(t, err);
    e->param = module_param_find(&t->list, plain);
    for (const struct verl_entry *b = t->entries; b < e && !e->param; b++)
        if (is_tied(t, e, b, as))
            e->param = b->param;
    if (!e->param)
        return tp_fail(err, TP_E_USAGE,
                       "%s: tensor %s is not written, and verl loads only complete models; export "
                       "another format",
                       t->q->source, e->key);
    return TP_OK;
}

static tp_status add_entry(struct verl_target *t, const char *key, const struct pickle_value *v,
                           struct tp_err *err)
{
    struct verl_entry *e = &t->entries[t->n];
    struct verl_tensor tensor = { .local = v };
    struct torch_tensor local;
    enum dtype dtype;
    tp_status st;

    *e = (struct verl_entry){ .key = key, .v = v, .axis = verl_tensor_axis(v) };
    if (verl_tensor_is(v)) {
        TP_TRY(verl_tensor_read(&tensor, &t->model, v, key, err));
        if (e->axis < 0 || !t->model.mesh.of)
            return tp_fail(err, TP_E_USAGE,
                           "%s: tensor %s is not a DTensor of FSDP, so it cannot be written for "
                           "other ranks; export another format",
                           t->q->source, key);
    }
    TP_TRY(torch_tensor_read(&local, &t->model.x.torch, tensor.local, key, err));
    e->begin = local.begin;
    TP_TRY(find_param(t, e, &tensor, err));
    t->n++;
    dtype = module_param_dtype(e->param, GROUP_PARAM);
    if (dtype != local.dtype)
        st = tp_fail(err, TP_E_USAGE,
                     "%s: tensor %s is %s there and would be %s; verl loads the types that it saved"
                     ": give --dtype %s",
                     t->q->source, key, dtype_name(local.dtype), dtype_name(dtype),
                     dtype_name(local.dtype));
done:
    return st;
}

static tp_status read_entries(struct verl_target *t, struct tp_err *err)
{
    const struct pickle_value *root = t->model.x.root;
    tp_status st = TP_OK;

    t->entries = arena_array(piece_target_arena(t->pieces), (size_t)pickle_entries(root) + 1,
                             sizeof *t->entries);
    if (!t->entries)
        return no_memory(t, err);
    for (int64_t i = 0; i < pickle_entries(root) && !st; i++) {
        const char *key = pickle_text(pickle_key(root, i));
        const struct pickle_value *v = pickle_entry(root, i);

        if (key && (verl_tensor_is(v) || torch_tensor_is(v)))
            st = add_entry(t, key, v, err);
    }
    return st;
}

/* Number the parameters: a tied one has the number of the first. */
static tp_status number_entries(struct verl_target *t, struct tp_err *err)
{
    const struct pickle_value *group = pickle_item(pickle_get(t->optim.x.root, "param_groups"), 0);

    t->numbers = arena_array(piece_target_arena(t->pieces), (size_t)t->n + 1, sizeof *t->numbers);
    if (!t->numbers)
        return no_memory(t, err);
    for (int i = 0; i < t->n; i++) {
        bool tied = false;

        for (int b = 0; b < i && !tied; b++)
            tied = t->entries[b].param == t->entries[i].param;
        if (!tied && t->entries[i].axis >= 0)
            t->numbers[t->n_numbers++] = i;
    }
    if (t->optim.x.root && !pickle_copy_can(group))
        return tp_fail(err, TP_E_USAGE,
                       "%s: the optimizer's options are not plain values, which alone are written",
                       t->q->source);
    return TP_OK;
}

/* ---- FSDP1's optimizer ---- */

/* The length of the flat moment of number 0; -1: it is none. */
static int64_t first_length(const struct verl_target *t)
{
    const struct pickle_value *state = pickle_get(t->optim.x.root, "state"),
                              *v = pickle_get(pickle_get_number(state, 0), GROUP_EXP_AVG);
    struct tp_err ignored = { 0 };
    struct torch_tensor flat;

    return torch_tensor_is(v) &&
                   !torch_tensor_read(&flat, &t->optim.x.torch, v, GROUP_EXP_AVG, &ignored) &&
                   flat.ndim == 1
               ? flat.shape[0]
               : -1;
}

/* The parameters by their numbers in the model. */
static tp_status list_params(struct verl_target *t, struct tp_err *err)
{
    struct arena *arena = piece_target_arena(t->pieces);

    t->d = (struct verl_state){ .source = t->q->extras, .n_params = t->n };
    t->d.params = arena_array(arena, (size_t)t->n + 1, sizeof *t->d.params);
    t->params = arena_array(arena, (size_t)t->n + 1, sizeof *t->params);
    if (!t->d.params || !t->params)
        return no_memory(t, err);
    for (int i = 0; i < t->n; i++) {
        const struct verl_entry *e = &t->entries[i];

        t->d.params[i] = (struct verl_param){ .name = e->key,
                                              .ndim = e->param->ndim,
                                              .distributed = e->axis >= 0 };
        memcpy(t->d.params[i].shape, e->param->shape, sizeof t->d.params[i].shape);
        t->params[i] = e->param;
    }
    return verl_units_make(&t->units, &t->d, err);
}

/* Whether the source's rank 0 has these units, which have been compared with all ranks. */
static bool has_units(struct verl_target *t, int64_t count, enum verl_units_kind kind, bool tied)
{
    t->d.shards = (int)t->model.mesh.size[t->model.mesh.ndim - 1];
    verl_units_set(&t->units, kind, tied);
    return t->units.n == count && first_length(t) == verl_units_part(&t->units, 0);
}

/* Find the units, if the optimizer's state is flat. */
static tp_status find_units(struct verl_target *t, struct tp_err *err)
{
    const struct pickle_value *group = pickle_item(pickle_get(t->optim.x.root, "param_groups"), 0);
    const int64_t count = pickle_count(pickle_get(group, "params"));
    tp_status st;

    t->flat = pickle_is(t->optim.x.root, PICKLE_DICT) && first_length(t) >= 0;
    if (!t->flat)
        return TP_OK;
    TP_TRY(list_params(t, err));
    if (has_units(t, count, VERL_UNITS_LAYERS, false) ||
        has_units(t, count, VERL_UNITS_LAYERS, true) ||
        has_units(t, count, VERL_UNITS_ONE, false) || has_units(t, count, VERL_UNITS_ONE, true))
        return TP_OK;
    st = tp_fail(err, TP_E_USAGE,
                 "%s: has an optimizer of FSDP1 with use_orig_params, which is read, but not "
                 "written; export another format, as dcp",
                 t->q->source);
done:
    return st;
}

/* ---- the new mesh ---- */

/* As create_device_mesh of verl does it with the source's fsdp_size. */
static tp_status make_mesh(struct verl_target *t, struct tp_err *err)
{
    const struct spec *s = &t->q->layout->spec;
    const struct verl_mesh *from = &t->model.mesh;
    const int64_t shards = from->ndim > 0 ? from->size[from->ndim - 1] : 0;

    t->world = s->dp;
    if (spec_world(s) != s->dp)
        return tp_fail(err, TP_E_USAGE, "verl's FSDP has only dp: give --to dp%d", spec_world(s));
    if (from->ndim == 0 || (t->flat && t->world == 1))
        return tp_fail(err, TP_E_USAGE,
                       "%s: FSDP1 does not shard on one rank, which is read, but not written: "
                       "export another format, as dcp",
                       t->q->source);
    t->mesh = (struct verl_mesh){ .ndim = from->ndim };
    if (from->ndim == 1) {
        t->mesh.size[0] = t->world;
    } else if (from->ndim == 2 && t->world % shards == 0 && t->world > shards) {
        t->mesh.size[0] = t->world / shards;
        t->mesh.size[1] = shards;
    } else {
        return tp_fail(err, TP_E_USAGE,
                       "%s: has replicas of %lld ranks (fsdp_size), so it is written for multiples "
                       "of %lld, two at least, not for dp%d",
                       t->q->source, (long long)shards, (long long)shards, t->world);
    }
    t->shards = (int)t->mesh.size[t->mesh.ndim - 1];
    return TP_OK;
}

/* verl 0.6 and 0.7 cut the first axis that divides (get_shard_placement_fn), and other versions the
 * first. Only an axis other than the first one tells them apart. */
static int dividing_axis(const struct verl_target *t, const struct module_param *p)
{
    for (int d = 0; d < p->ndim; d++)
        if (p->shape[d] % t->shards == 0)
            return d;
    return 0;
}

static void choose_axes(struct verl_target *t)
{
    bool dividing = false, differ = false, told = false;
    const int64_t shards = t->model.mesh.size[t->model.mesh.ndim - 1];

    for (int i = 0; i < t->n; i++) {
        const struct module_param *p = t->entries[i].param;

        dividing |= t->entries[i].axis > 0;
        differ |= t->entries[i].axis >= 0 && dividing_axis(t, p) > 0;
        for (int d = 1; d < p->ndim && p->shape[0] % shards != 0; d++)
            told |= p->shape[d] % shards == 0;
    }
    for (int i = 0; i < t->n && dividing; i++)
        if (t->entries[i].axis >= 0)
            t->entries[i].axis = dividing_axis(t, t->entries[i].param);
    if (!dividing && !told && differ && !t->flat)
        progress_note(
            t->q->progress,
            "tensors are cut along their first axis; verl 0.6 and 0.7 with FSDP2 cut some "
            "along another one at dp%d, and cannot load these",
            t->world);
}

/* ---- files ---- */

static tp_status begin_file(struct torch_target *x, struct verl_form *f,
                            const struct verl_target *t, const char *kind, int rank,
                            struct tp_err *err)
{
    char name[VERL_NAME_BYTES];
    int file = 0;
    tp_status st;

    verl_file_name(name, kind, t->world, rank);
    st = piece_target_file(t->pieces, &file, name, err);
    if (st)
        return st;
    torch_target_begin(x, t->pieces, file, 0);
    *f = (struct verl_form){ .x = x, .rank = rank, .mesh = t->mesh, .memo = -1 };
    return TP_OK;
}

/* Push the rank's part of a tensor, in the form of the source's value v. */
static tp_status push_tensor(const struct verl_target *t, struct verl_form *f,
                             const struct verl_entry *e, const char *group,
                             const struct pickle_value *v, struct tp_err *err)
{
    struct box box = box_whole(e->param->ndim, e->param->shape);
    bool known = false;
    tp_status st;

    if (e->axis < 0)
        return module_param_push(f->x, e->param, group, &box, err);
    verl_tensor_cut(&box, e->axis, t->shards, f->rank % t->shards);
    st = verl_form_push(&known, f, v, e->param, group, e->axis, &box, err);
    if (!st && !known)
        st = tp_fail(err, TP_E_USAGE,
                     "%s: %s is a DTensor in a form of torch that is not known, so it cannot be "
                     "written for other ranks; export another format",
                     t->q->source, e->key);
    return st;
}

static tp_status write_model(const struct verl_target *t, int rank, struct tp_err *err)
{
    struct torch_target x;
    struct verl_form f;
    tp_status st = begin_file(&x, &f, t, "model", rank, err);

    if (st)
        return st;
    pickle_write_ordered_dict(&x.save.pickle);
    for (int i = 0; i < t->n && !st; i++) {
        pickle_write_text(&x.save.pickle, t->entries[i].key);
        st = push_tensor(t, &f, &t->entries[i], GROUP_PARAM, t->entries[i].v, err);
    }
    pickle_write_op(&x.save.pickle, PICKLE_OP_SETITEMS);
    return torch_target_finish(&x, st, err);
}

/* What the optimizer has of a number. */
static tp_status push_state(const struct verl_target *t, struct verl_form *f, int64_t number,
                            const struct pickle_value *state, struct tp_err *err)
{
    struct pickle_writer *w = &f->x->save.pickle;
    const struct verl_entry *e =
        number >= 0 && number < t->n_numbers ? &t->entries[t->numbers[number]] : NULL;
    tp_status st = TP_OK;

    pickle_write_int(w, number);
    pickle_write_dict(w);
    for (int64_t i = 0; i < pickle_entries(state) && !st; i++) {
        const char *key = pickle_text(pickle_key(state, i));
        const struct pickle_value *v = pickle_entry(state, i);
        const char *group = key && strcmp(key, GROUP_EXP_AVG) == 0      ? GROUP_EXP_AVG
                            : key && strcmp(key, GROUP_EXP_AVG_SQ) == 0 ? GROUP_EXP_AVG_SQ
                                                                        : NULL;

        if (key && strcmp(key, "step") == 0) {
            pickle_write_text(w, key);
            torch_save_number(&f->x->save, t->q->optimizer_step);
        } else if (t->flat && number >= 0 && number < t->units.n && group && torch_tensor_is(v)) {
            const struct verl_flat flat = { &t->units, t->params, group };

            pickle_write_text(w, key);
            st = verl_flat_push(f->x, &flat, (int)number, f->rank % t->shards, err);
        } else if (e && group && verl_tensor_is(v) && module_param_missing(e->param, group) < 0) {
            pickle_write_text(w, key);
            st = push_tensor(t, f, e, group, v, err);
        } else {
            st = tp_fail(err, TP_E_USAGE,
                         "%s: the optimizer has %.60s of parameter %lld, which is not AdamW's, and "
                         "verl loads only its complete state; export another format",
                         t->q->source, key ? key : "something without a name", (long long)number);
        }
    }
    pickle_write_op(w, PICKLE_OP_SETITEMS);
    return st;
}

static tp_status write_optimizer(const struct verl_target *t, int rank, struct tp_err *err)
{
    const struct pickle_value *root = t->optim.x.root, *state = pickle_get(root, "state");
    struct torch_target x;
    struct verl_form f;
    tp_status st = begin_file(&x, &f, t, "optim", rank, err);

    if (st)
        return st;
    pickle_write_dict(&x.save.pickle);
    pickle_write_text(&x.save.pickle, "state");
    pickle_write_dict(&x.save.pickle);
    for (int64_t i = 0; i < pickle_entries(state) && !st; i++) {
        int64_t number = -1;

        pickle_int(&number, pickle_key(state, i));
        st = push_state(t, &f, number, pickle_entry(state, i), err);
    }
    pickle_write_op(&x.save.pickle, PICKLE_OP_SETITEMS);
    pickle_write_text(&x.save.pickle, "param_groups");
    pickle_copy(&x.save.pickle, pickle_get(root, "param_groups"));
    pickle_write_op(&x.save.pickle, PICKLE_OP_SETITEMS);
    return torch_target_finish(&x, st, err);
}

/* The schedule, without the random state: each rank has its own, so that of another number of ranks
 * is none. verl takes one that is there. */
static tp_status write_extra(const struct verl_target *t, int rank, struct tp_err *err)
{
    const struct pickle_value *schedule = pickle_get(t->extra.x.root, "lr_scheduler");
    struct torch_target x;
    struct verl_form f;
    tp_status st = begin_file(&x, &f, t, "extra_state", rank, err);

    if (st)
        return st;
    pickle_write_dict(&x.save.pickle);
    pickle_write_text(&x.save.pickle, "lr_scheduler");
    if (schedule && pickle_copy_can(schedule))
        pickle_copy(&x.save.pickle, schedule);
    else
        pickle_write_op(&x.save.pickle, PICKLE_OP_NONE);
    pickle_write_op(&x.save.pickle, PICKLE_OP_SETITEMS);
    return torch_target_finish(&x, TP_OK, err);
}

static tp_status write_config(const struct verl_target *t, struct tp_err *err)
{
    char path[PATH_MAX], text[JSON_TEXT];
    tp_status st = file_join(path, t->q->dir, "fsdp_config.json", err);

    snprintf(text, sizeof text, "{\n    \"FSDP_version\": %d,\n    \"world_size\": %d\n}",
             t->flat ? 1 : 2, t->world);
    return st ? st : file_write_new(path, text, strlen(text), err);
}

/* ---- as a format of tp-ckpt export ---- */

static tp_status read_source(struct verl_target *t, struct tp_err *err)
{
    char dir[PATH_MAX];
    int world = 0;
    tp_status st;

    TP_TRY(verl_folder_find(dir, piece_source_path(t->q->extras), err));
    TP_TRY(verl_folder_world(&world, dir, err));
    t->contents.module_names = piece_source_has_module_names(t->q->extras);
    TP_TRY(module_param_list(&t->list, &t->contents, piece_target_arena(t->pieces), err));
    TP_TRY(open_source(&t->model, t, "model", world, err));
    TP_TRY(open_source(&t->optim, t, "optim", world, err));
    TP_TRY(open_source(&t->extra, t, "extra_state", world, err));
    TP_TRY(read_entries(t, err));
    TP_TRY(number_entries(t, err));
    TP_TRY(find_units(t, err));
    TP_TRY(make_mesh(t, err));
    t->d.shards = t->shards;
    choose_axes(t);
done:
    return st;
}

static tp_status write_all(struct verl_target *t, struct tp_err *err)
{
    const bool has_optim = pickle_is(t->optim.x.root, PICKLE_DICT);
    tp_status st = TP_OK;

    for (int rank = 0; rank < t->world && !st; rank++) {
        st = write_model(t, rank, err);
        if (!st && has_optim)
            st = write_optimizer(t, rank, err);
        if (!st && t->extra.x.root)
            st = write_extra(t, rank, err);
    }
    return st ? st : write_config(t, err);
}

tp_status verl_export_create(struct export_writer *w, const struct export_contents *q,
                             struct tp_err *err)
{
    struct verl_target t = { .q = q, .contents = *q };
    tp_status st;

    if (!q->extras)
        return tp_fail(err, TP_E_USAGE,
                       "%s: files of verl are written only from files of verl, with all that they "
                       "have, because they depend on the version of torch; export another format",
                       q->source);
    TP_TRY(piece_target_new(&t.pieces, q->dir, q->tensors, q->n, err));
    TP_TRY(read_source(&t, err));
    TP_TRY(write_all(&t, err));
    TP_TRY(piece_target_plan(t.pieces, err));
    *w = piece_target_writer(t.pieces);
    t.pieces = NULL;
done:
    if (t.model.x.source)
        torch_pieces_close(&t.model.x);
    if (t.optim.x.source)
        torch_pieces_close(&t.optim.x);
    if (t.extra.x.source)
        torch_pieces_close(&t.extra.x);
    piece_target_close(t.pieces);
    return st;
}
