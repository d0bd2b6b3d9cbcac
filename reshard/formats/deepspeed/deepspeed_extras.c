/* reshard/formats/deepspeed/deepspeed_extras.c - see reshard/formats/deepspeed/deepspeed_extras.h.
 */
#include "reshard/formats/deepspeed/deepspeed_extras.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "core/text.h"
#include "storage/location.h"
#include "storage/object.h"

enum { NAME_BYTES = 160 };

#define OPTIMIZER_STATE "zero/optimizer_state.pt"

/* Whether an entry says something: None, false, and what is empty do not. */
static bool says_something(const struct pickle_value *v)
{
    if (pickle_is(v, PICKLE_NONE) || (pickle_is(v, PICKLE_BOOL) && !v->number))
        return false;
    if (pickle_is(v, PICKLE_LIST) || pickle_is(v, PICKLE_TUPLE))
        return pickle_count(v) > 0;
    return !pickle_is(v, PICKLE_DICT) || pickle_entries(v) > 0;
}

/* Note the entries of a dict that are none of `known`. */
static tp_status leave_entries(struct piece_source *s, const char *head,
                               const struct pickle_value *v, const char *const *known,
                               struct tp_err *err)
{
    char name[NAME_BYTES];
    tp_status st = TP_OK;

    for (int64_t i = 0; i < pickle_entries(v) && !st; i++) {
        const char *key = pickle_text(pickle_key(v, i));

        if (!key || text_is_one_of(key, known) || !says_something(pickle_entry(v, i)))
            continue;
        snprintf(name, sizeof name, "%s%s", head, key);
        st = piece_source_leave(s, name, err);
    }
    return st;
}

tp_status deepspeed_extras_model(const struct deepspeed_state *d, const struct pickle_value *root,
                                 struct tp_err *err)
{
    static const char *const known[] = { "module",
                                         "param_shapes",
                                         "dp_world_size",
                                         "mp_world_size",
                                         "global_steps",
                                         "buffer_names",
                                         "frozen_param_shapes", /* read of ZeRO-3 */
                                         "frozen_param_fragments",
                                         "ds_version",
                                         "checkpoint_parallel_dimensions",
                                         NULL };

    return leave_entries(d->source, "", root, known, err);
}

/* ---- the optimizer ---- */

tp_status deepspeed_extras_optimizer(const struct deepspeed_state *d,
                                     const struct pickle_value *state, struct tp_err *err)
{
    static const char *const known[] = { "base_optimizer_state",
                                         "optimizer_state_dict",
                                         "fp32_flat_groups",
                                         "single_partition_of_fp32_groups",
                                         "zero_stage",
                                         "group_paddings",
                                         "param_alignment_paddings",
                                         "partition_count",
                                         "param_slice_mappings",
                                         "ds_version",
                                         "param_groups",
                                         NULL };
    static const char *const moments[] = { GROUP_EXP_AVG, GROUP_EXP_AVG_SQ, "step", NULL };
    const struct pickle_value *base =
        pickle_get(state, pickle_get(state, "base_optimizer_state") ? "base_optimizer_state"
                                                                    : "optimizer_state_dict");
    const struct pickle_value *groups = pickle_get(base ? base : state, "param_groups");
    struct export_adamw adamw = EXPORT_ADAMW_DEFAULT;
    tp_status st;

    if (torch_pieces_adamw(&adamw, pickle_item(groups, 0)))
        piece_source_set_adamw(d->source, &adamw);
    st = leave_entries(d->source, "optimizer.", state, known, err);
    return st ? st
              : leave_entries(d->source, "optimizer.state.", deepspeed_zero_group(base, 0), moments,
                              err);
}

/* ---- Universal ---- */

/* Each folder in zero/ is a parameter's. */
static tp_status check_folders(const struct deepspeed_state *d, DIR *zero, struct tp_err *err)
{
    const struct dirent *e;
    char name[PATH_MAX], path[PATH_MAX];
    tp_status st = TP_OK;

    while (!st && (e = readdir(zero))) {
        if (e->d_name[0] == '.' || deepspeed_state_find(d, e->d_name))
            continue;
        snprintf(name, sizeof name, "zero/%s", e->d_name);
        st = file_join(path, d->dir, name, err);
        if (!st && file_is_dir(path))
            st = tp_fail(err, TP_E_CORRUPT,
                         "%s: is a tensor that param_shapes does not have; it is of another "
                         "checkpoint, or the folder is damaged",
                         path);
    }
    return st;
}

/* The files of the first parameter; the others have the same. */
static tp_status leave_files(const struct deepspeed_state *d, DIR *param, struct tp_err *err)
{
    static const char *const known[] = { "fp32.pt", "exp_avg.pt", "exp_avg_sq.pt", "step.pt",
                                         NULL };
    const struct dirent *e;
    char name[PATH_MAX];
    tp_status st = TP_OK;

    while (!st && (e = readdir(param))) {
        snprintf(name, sizeof name, "zero/*/%s", e->d_name);
        if (!text_is_one_of(e->d_name, known) && text_ends_with(e->d_name, ".pt"))
            st = piece_source_leave(d->source, name, err);
    }
    return st;
}

static tp_status list_folders(const struct deepspeed_state *d, struct tp_err *err)
{
    char name[PATH_MAX], path[PATH_MAX];
    DIR *dir;
    tp_status st;

    TP_TRY(file_join(path, d->dir, "zero", err));
    if ((dir = opendir(path))) {
        st = check_folders(d, dir, err);
        closedir(dir);
    }
    TP_TRY(st);
    if (!file_name_is_plain(d->params[0].name))
        return TP_OK; /* refused where it is read */
    snprintf(name, sizeof name, "zero/%s", d->params[0].name);
    TP_TRY(file_join(path, d->dir, name, err));
    if ((dir = opendir(path))) {
        st = leave_files(d, dir, err);
        closedir(dir);
    }
done:
    return st;
}

/* The step in zero/optimizer_state.pt. Universal checkpoints that were made from ZeRO-3 have it
 * only there. */
static tp_status read_step(const struct deepspeed_state *d, struct torch_pieces *x,
                           struct tp_err *err)
{
    const struct pickle_value *state =
                                  pickle_get(pickle_get(x->root, "optimizer_state_dict"), "state"),
                              *step = pickle_get(pickle_get_number(state, 0), "step");
    int64_t at = 0;
    tp_status st = TP_OK;

    if (torch_pieces_is_number(step)) {
        TP_TRY(torch_pieces_number(&at, x, step, "step", err));
        st = piece_source_set_step(d->source, at, OPTIMIZER_STATE, err);
    }
done:
    return st;
}

tp_status deepspeed_extras_universal(const struct deepspeed_state *d, struct tp_err *err)
{
    struct torch_pieces x = { .source = d->source };
    char path[PATH_MAX];
    tp_status st;

    if (!location_is_remote(d->dir)) /* a store shows no folders */
        TP_TRY(list_folders(d, err));
    TP_TRY(file_join(path, d->dir, OPTIMIZER_STATE, err));
    if (!object_is_there(path))
        return TP_OK;
    TP_TRY(deepspeed_state_open(&x, d, OPTIMIZER_STATE, err));
    TP_TRY(deepspeed_extras_optimizer(d, x.root, err));
    st = read_step(d, &x, err);
done:
    torch_pieces_close(&x);
    return st;
}
