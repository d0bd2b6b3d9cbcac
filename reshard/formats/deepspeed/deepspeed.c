/* reshard/formats/deepspeed/deepspeed.c - see reshard/formats/deepspeed/deepspeed.h. */
#include "reshard/formats/deepspeed/deepspeed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "reshard/formats/deepspeed/deepspeed_extras.h"
#include "reshard/formats/deepspeed/model_parallel.h"
#include "reshard/formats/megatron/megatron_config.h"
#include "reshard/formats/pieces/compiled_name.h"
#include "reshard/formats/pieces/module_piece.h"
#include "storage/location.h"
#include "storage/object.h"

#define MODEL_STATES       "mp_rank_00_model_states.pt"
#define MODEL_STATES_ZERO3 "zero_pp_rank_0_mp_rank_00_model_states.pt"
#define MODEL_STATES_RANK1 "zero_pp_rank_1_mp_rank_00_model_states.pt"

enum {
    TAG_BYTES_MAX = 255,
    STEP_UNKNOWN = -1, /* a tag says no step */
    NO_TAG = -2,       /* there is none */
};

/* ---- the folder ---- */

static bool has_model_states(const struct deepspeed_state *d)
{
    return object_is_in(d->dir, MODEL_STATES) || object_is_in(d->dir, MODEL_STATES_ZERO3) ||
           object_is_in(d->dir, MODEL_STATES_RANK1);
}

/* The step of a tag: "global_step100", "global_step100_universal". */
static int64_t step_of(const char *tag)
{
    static const char head[] = "global_step";
    const char *number = tag + sizeof head - 1;

    if (strncmp(tag, head, sizeof head - 1) != 0 || *number < '0' || *number > '9')
        return STEP_UNKNOWN;
    return strtoll(number, NULL, 10);
}

/* Go to the folder that the file `name` in `path` names, if there is one. *step is that of its
 * tag. */
static tp_status follow(struct deepspeed_state *d, int64_t *step, const char *path,
                        const char *name, struct tp_err *err)
{
    struct arena arena = { 0 };
    char file[PATH_MAX], *tag;
    size_t size;
    tp_status st;

    *step = NO_TAG;
    snprintf(d->dir, sizeof d->dir, "%s", path);
    TP_TRY(file_join(file, path, name, err));
    if (!object_is_there(file))
        goto done;
    TP_TRY(object_read_any(&tag, &size, file, TAG_BYTES_MAX, &arena, err));
    tag[strcspn(tag, "\r\n")] = 0;
    *step = step_of(tag);
    if (!file_name_is_plain(tag))
        st = tp_fail(err, TP_E_CORRUPT, "%s: names no folder", file);
    else
        st = file_join(d->dir, path, tag, err);
done:
    arena_free(&arena);
    return st;
}

/* Follow `latest_universal` or `latest`, if there is one. Programs that began with a Universal
 * checkpoint save beside it, so of both the one with the later step counts. */
static tp_status find_tag(struct deepspeed_state *d, const char *path, struct tp_err *err)
{
    struct deepspeed_state zero = { .source = NULL };
    int64_t universal_step, zero_step;
    tp_status st;

    TP_TRY(follow(d, &universal_step, path, "latest_universal", err));
    if (universal_step == NO_TAG) {
        st = follow(d, &zero_step, path, "latest", err);
    } else if (universal_step >= 0) {
        struct tp_err ignored = { 0 };

        if (!follow(&zero, &zero_step, path, "latest", &ignored) && zero_step > universal_step &&
            has_model_states(&zero))
            memcpy(d->dir, zero.dir, sizeof d->dir);
    }
done:
    return st;
}

/* Without its first file it is still DeepSpeed's, and damaged. Universal has a folder "zero". A web
 * server shows no folders, so there it may be what is not ZeRO, until its parameters are known. */
static bool find_folder(struct deepspeed_state *d, const char *path)
{
    struct tp_err err = { 0 };
    bool optimizer, found;

    if (find_tag(d, path, &err))
        return false;
    found = object_is_in(d->dir, MODEL_STATES);
    d->zero3 = !found && (object_is_in(d->dir, MODEL_STATES_ZERO3) ||
                          object_is_in(d->dir, MODEL_STATES_RANK1));
    optimizer = deepspeed_zero_is_in(d->dir);
    d->universal = location_is_remote(d->dir) ? !optimizer : object_is_in(d->dir, "zero");
    return found || d->zero3 || optimizer;
}

bool deepspeed_detect(const char *path)
{
    struct deepspeed_state d = { .source = NULL };

    return find_folder(&d, path);
}

tp_status deepspeed_state_open(struct torch_pieces *x, const struct deepspeed_state *d,
                               const char *name, struct tp_err *err)
{
    char path[PATH_MAX];
    int file = 0;
    tp_status st;

    *x = (struct torch_pieces){ .source = d->source };
    TP_TRY(file_join(path, d->dir, name, err));
    TP_TRY(file_table_add(piece_source_files(d->source), &file, path, err));
    TP_TRY(torch_pieces_open(x, d->source, file, 0, -1, err));
done:
    return st;
}

struct piece deepspeed_state_piece(const struct deepspeed_state_param *param, const char *group)
{
    struct piece p = { .group = group, .name = param->plain, .ndim = param->ndim };

    memcpy(p.shape, param->shape, sizeof p.shape);
    p.box = box_whole(p.ndim, p.shape);
    return p;
}

/* ---- model states ---- */

static tp_status refuse(const struct torch_pieces *x, const char *what, struct tp_err *err)
{
    return tp_fail(err, TP_E_CORRUPT, "%s: %s",
                   file_table_path(piece_source_files(x->source), x->file), what);
}

/* What rank 0 says of parameters. ZeRO-3 cuts those that are not trained too, but its optimizer
 * does not have them: their parts are in the model states of each rank. */
static tp_status read_shapes(struct deepspeed_state *d, struct torch_pieces *x, struct tp_err *err)
{
    struct arena *arena = piece_source_arena(d->source);
    struct deepspeed_shapes shapes;
    tp_status st;

    TP_TRY(deepspeed_shapes_read(&shapes, x, "param_shapes", arena, err));
    if (shapes.n == 0)
        return refuse(x, "has no param_shapes", err);
    TP_TRY(deepspeed_shapes_take(d, &shapes, err));
    if (!d->zero3)
        return TP_OK;
    TP_TRY(deepspeed_shapes_read(&shapes, x, "frozen_param_shapes", arena, err));
    TP_TRY(deepspeed_shapes_take_frozen(d, &shapes, err));
    if (d->n_frozen > 0 && d->mp > 1)
        return tp_fail(err, TP_E_USAGE,
                       "%s: frozen parameters of ZeRO-3 are not read with a model-parallel size of "
                       "%d; it has %d, the first is %s",
                       d->dir, d->mp, d->n_frozen, d->frozen->name);
    st = deepspeed_rank_add_frozen(d, x, 0, err);
done:
    return st;
}

/* The weights, which ZeRO-3 leaves empty. Their type is also that of the model. */
static tp_status add_weights(struct deepspeed_state *d, struct torch_pieces *x, struct tp_err *err)
{
    const struct pickle_value *module = pickle_get(x->root, "module");
    const bool has_all = !d->zero3 && d->mp == 1 && !model_parallel_names(d);
    enum dtype dtype = DTYPE_F32;
    tp_status st = TP_OK;

    for (int64_t i = 0; i < pickle_entries(module) && !st; i++) {
        const struct pickle_value *v = pickle_entry(module, i);
        const char *key = pickle_text(pickle_key(module, i)), *name;
        struct piece p;

        if (!key || !torch_tensor_is(v))
            continue;
        name = compiled_name_plain(piece_source_arena(d->source), key);
        if (!name)
            return refuse(x, "no memory for its tensors", err);
        TP_TRY(torch_pieces_tensor(&p, x, v, GROUP_PARAM, name, err));
        if (d->zero3 && box_elements(&p.box) > 0 && !deepspeed_state_find(d, key) &&
            !deepspeed_state_find_frozen(d, key)) {
            st = piece_source_leave(d->source, key, err); /* a buffer, of whatever type */
            continue;
        }
        dtype = p.dtype;
        if (has_all)
            st = module_piece_add(d->source, d->model, &p, err);
    }
    if (!has_all && dtype == DTYPE_F32)
        d->masters = GROUP_PARAM;
    else if (dtype == DTYPE_F16)
        piece_source_set_weights(d->source, DTYPE_F16);
    if (d->n_frozen > 0 && dtype != DTYPE_F32)
        piece_source_set_frozen(d->source);
done:
    return st;
}

/* Of rank 0: they say what all files have. */
static tp_status open_model_states(struct torch_pieces *x, const struct deepspeed_state *d,
                                   struct tp_err *err)
{
    const char *name = d->zero3 ? MODEL_STATES_ZERO3 : MODEL_STATES;
    tp_status st = deepspeed_state_open(x, d, name, err);

    if (!st || object_is_in(d->dir, name))
        return st;
    return tp_fail(err, TP_E_CORRUPT,
                   "%s/%s: no such file%s; it is read first; were the files of all ranks copied?",
                   d->dir, name, d->zero3 ? "" : " (of ZeRO-3: " MODEL_STATES_ZERO3 ")");
}

static tp_status read_model_states(struct deepspeed_state *d, struct tp_err *err)
{
    struct torch_pieces x;
    tp_status st;

    TP_TRY(open_model_states(&x, d, err));
    if (!deepspeed_state_count(&d->dp, x.root, "dp_world_size") ||
        !deepspeed_state_count(&d->mp, x.root, "mp_world_size")) {
        st = refuse(&x, "has no dp_world_size or mp_world_size", err);
        goto done;
    }
    if (d->mp > 1 && d->zero3 && !d->universal) {
        st = tp_fail(err, TP_E_USAGE,
                     "%s: was saved by ZeRO-3 with a model-parallel size of %d; convert it with "
                     "DeepSpeed's ds_to_universal first",
                     d->dir, d->mp);
        goto done;
    }
    if (pickle_int(&d->steps, pickle_get(x.root, "global_steps")) && d->steps >= 0)
        TP_TRY(piece_source_set_iteration(d->source, d->steps, "global_steps", err));
    TP_TRY(read_shapes(d, &x, err));
    if (d->universal && location_is_remote(d->dir))
        d->universal = deepspeed_universal_is_in(d);
    d->is_parallel = model_parallel_is(d);
    model_parallel_order(d, x.root);
    if (!d->is_parallel)
        TP_TRY(add_weights(d, &x, err));
    TP_TRY(deepspeed_extras_model(d, x.root, err));
done:
    torch_pieces_close(&x);
    return st;
}

tp_status deepspeed_config(const char **text, const char **note, struct piece_source *s,
                           struct tp_err *err)
{
    struct deepspeed_state d = { .source = s };
    struct torch_pieces x = { .source = s };
    const struct pickle_value *args;
    tp_status st;

    *text = NULL;
    if (!find_folder(&d, piece_source_path(s)))
        return tp_fail(err, TP_E_NOTFOUND, "%s: has no " MODEL_STATES " nor " MODEL_STATES_ZERO3,
                       piece_source_path(s));
    TP_TRY(open_model_states(&x, &d, err));
    args = pickle_get(x.root, "args");
    if (pickle_get(args, "add_position_embedding"))
        st = megatron_config_make(text, note, args, file_table_path(piece_source_files(s), x.file),
                                  piece_source_arena(s), err);
done:
    torch_pieces_close(&x);
    return st;
}

tp_status deepspeed_read(struct piece_source *s, const struct model *m, struct tp_err *err)
{
    struct deepspeed_state d = { .source = s, .model = m, .masters = GROUP_MASTER, .steps = -1 };
    tp_status st;

    if (!find_folder(&d, piece_source_path(s)))
        return tp_fail(err, TP_E_NOTFOUND, "%s: has no " MODEL_STATES " nor " MODEL_STATES_ZERO3,
                       piece_source_path(s));
    TP_TRY(read_model_states(&d, err));
    for (int rank = 1; rank < d.dp && d.universal && d.n_frozen > 0; rank++)
        TP_TRY(deepspeed_rank_read(&d, rank, err));
    st = d.universal     ? deepspeed_universal_add(&d, err)
         : d.is_parallel ? model_parallel_read(&d, err)
                         : deepspeed_zero_add(&d, err);
done:
    return st;
}
