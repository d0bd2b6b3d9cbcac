/* reshard/formats/deepspeed/deepspeed_universal.c - Universal checkpoints, a folder for each
 * parameter; see reshard/formats/deepspeed/deepspeed_state.h. */
#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "reshard/formats/deepspeed/deepspeed_extras.h"
#include "reshard/formats/deepspeed/model_parallel.h"
#include "reshard/formats/deepspeed/parallel_param.h"
#include "reshard/formats/pieces/flat_pieces.h"
#include "reshard/formats/pieces/module_piece.h"
#include "storage/object.h"

/* ---- model parallelism ---- */

/* Add the parameters of a rank's model states that the ranks before do not have, as of a later
 * pipeline stage. */
static tp_status add_params(struct deepspeed_state *d, const struct torch_pieces *x,
                            struct tp_err *err)
{
    struct arena *arena = piece_source_arena(d->source);
    struct deepspeed_shapes shapes, all = { .n = d->n_params };
    tp_status st = deepspeed_shapes_read(&shapes, x, "param_shapes", arena, err);

    if (st)
        return st;
    all.list = arena_array(arena, (size_t)all.n + (size_t)shapes.n + 1, sizeof *all.list);
    if (!all.list)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its parameters", d->dir);
    memcpy(all.list, d->params, (size_t)all.n * sizeof *all.list);
    for (int i = 0; i < shapes.n; i++)
        if (!deepspeed_state_find(d, shapes.list[i].name))
            all.list[all.n++] = shapes.list[i];
    return deepspeed_shapes_take(d, &all, err);
}

/* What the ranks after the first one have. A damaged file may claim any number of them. */
static tp_status read_ranks(struct deepspeed_state *d, struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int rank = 1; rank < d->mp && !st; rank++) {
        struct torch_pieces x = { .source = d->source };
        char name[DEEPSPEED_NAME_BYTES];

        snprintf(name, sizeof name, "mp_rank_%02d_model_states.pt", rank);
        st = deepspeed_state_open(&x, d, name, err);
        if (!st)
            st = add_params(d, &x, err);
        torch_pieces_close(&x);
    }
    return st;
}

/* Tensors in zero/ are whole, but a rank's shapes are those of its part. */
static void take_shape(struct deepspeed_state_param *param, const struct piece *p)
{
    if (p->ndim == param->ndim)
        memcpy(param->shape, p->shape, sizeof param->shape);
}

/* ---- the files of a parameter ---- */

/* The tensor of a file: {"param": tensor, "cat_dim": 0}, or the tensor alone, flat. Masters come
 * first. */
static tp_status add_tensor(const struct deepspeed_state *d, struct torch_pieces *x,
                            struct deepspeed_state_param *param, const char *group,
                            struct tp_err *err)
{
    const bool bare = torch_tensor_is(x->root);
    struct piece p, whole;
    char is[BOX_TEXT_MAX], should[BOX_TEXT_MAX];
    tp_status st;

    TP_TRY(torch_pieces_tensor(&p, x, bare ? x->root : pickle_get(x->root, "param"), group,
                               param->plain, err));
    if ((d->mp > 1 || d->parallel) && group == d->masters)
        take_shape(param, &p);
    whole = deepspeed_state_piece(param, group);
    if (box_equal(&p.box, &whole.box))
        return d->parallel ? parallel_param_add_whole(d, param, &p, err)
                           : module_piece_add(d->source, d->model, &p, err);
    if (p.ndim != 1 || p.shape[0] != box_elements(&whole.box) || !flat_pieces_is_dense(&p))
        return tp_fail(err, TP_E_CORRUPT, "%s: tensor %s is %s, but param_shapes says %s",
                       file_table_path(piece_source_files(d->source), x->file), param->name,
                       box_format(is, &p.box), box_format(should, &whole.box));
    whole.dtype = p.dtype;
    whole.file = p.file;
    whole.sum = p.sum;
    whole.begin = p.begin;
    st = flat_pieces_add(d->source, d->model, &whole, 0, p.shape[0], err);
done:
    return st;
}

/* Whether the first or the last parameter has a file. Another optimizer than AdamW has others. */
static bool has_file(const struct deepspeed_state *d, const char *file)
{
    const char *params[] = { d->params[0].name, d->params[d->n_params - 1].name };
    char name[PATH_MAX], path[PATH_MAX];
    struct tp_err ignored;
    bool found = false;

    for (int i = 0; i < 2 && !found; i++) {
        snprintf(name, sizeof name, "zero/%s/%s", params[i], file);
        found = file_name_is_plain(params[i]) && !file_join(path, d->dir, name, &ignored) &&
                object_is_there(path);
    }
    return found;
}

bool deepspeed_universal_is_in(const struct deepspeed_state *d)
{
    return has_file(d, "fp32.pt");
}

static tp_status add_file(const struct deepspeed_state *d, struct deepspeed_state_param *param,
                          const char *file, const char *group, struct tp_err *err)
{
    struct torch_pieces x = { .source = d->source };
    char name[PATH_MAX], path[PATH_MAX];
    int64_t step = 0;
    tp_status st;

    if (!file_name_is_plain(param->name))
        return tp_fail(err, TP_E_CORRUPT, "%s: the name of a parameter is not a plain name",
                       d->dir);
    snprintf(name, sizeof name, "zero/%s/%s", param->name, file);
    TP_TRY(file_join(path, d->dir, name, err));
    if (!group && !object_is_there(path))
        return TP_OK; /* made of ZeRO-3: the step is in the model states */
    TP_TRY(deepspeed_state_open(&x, d, name, err));
    if (group) {
        TP_TRY(add_tensor(d, &x, param, group, err));
    } else {
        TP_TRY(torch_pieces_number(&step, &x, x.root, param->name, err));
        TP_TRY(piece_source_set_step(d->source, step, path, err));
    }
done:
    torch_pieces_close(&x);
    return st;
}

tp_status deepspeed_universal_add(struct deepspeed_state *d, struct tp_err *err)
{
    bool avg, avg_sq;
    tp_status st;

    TP_TRY(read_ranks(d, err));
    TP_TRY(model_parallel_open_universal(d, err));
    TP_TRY(deepspeed_extras_universal(d, err));
    avg = has_file(d, "exp_avg.pt");
    avg_sq = has_file(d, "exp_avg_sq.pt");
    for (int i = 0; i < d->n_params && !st; i++) {
        struct deepspeed_state_param *p = &d->params[i];

        TP_TRY(add_file(d, p, "fp32.pt", d->masters, err));
        if (avg)
            TP_TRY(add_file(d, p, "exp_avg.pt", GROUP_EXP_AVG, err));
        if (avg_sq)
            TP_TRY(add_file(d, p, "exp_avg_sq.pt", GROUP_EXP_AVG_SQ, err));
        TP_TRY(add_file(d, p, "step.pt", NULL, err));
    }
done:
    return st;
}
