/*
 * reshard/formats/megatron_optimizer.c - the state of Megatron-LM's optimizers; see
 * reshard/formats/megatron_rank.h.
 *
 * The ordinary optimizer numbers a rank's parameters: matrices first, which have weight decay, then
 * vectors; within each in the order of modules. The distributed optimizer has flat buffers: the
 * parameters in the opposite order of modules, each from a multiple of 64 elements on.
 */
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "reshard/formats/megatron_rank.h"

enum { FLAT_ALIGN = 64 };

static const struct {
    const char *key, *group;
} moments[] = { { "exp_avg", GROUP_EXP_AVG }, { "exp_avg_sq", GROUP_EXP_AVG_SQ } };

static const char *path_of(const struct torch_pieces *x)
{
    return file_table_path(piece_source_files(x->source), x->file);
}

/* ---- the ordinary optimizer ---- */

/* Add a tensor of the optimizer that has the shape of a parameter. */
static tp_status add_whole(struct megatron_rank *r, struct torch_pieces *x,
                           const struct megatron_rank_param *param, const char *group,
                           const struct pickle_value *v, struct tp_err *err)
{
    struct piece p;
    tp_status st = torch_pieces_tensor(&p, x, v, group, param->name, err);

    if (st)
        return st;
    if (p.ndim != param->ndim || memcmp(p.shape, param->shape, sizeof *p.shape * (size_t)p.ndim))
        return tp_fail(
            err, TP_E_CORRUPT,
            "%s: %s of the optimizer has another shape than parameter %s; its parameters "
            "may have been numbered in an unknown way",
            path_of(x), group, param->name);
    return megatron_rank_add(r, param, &p, 0, megatron_rank_elements(param), err);
}

/* Master number `number`, counted through the groups. */
static const struct pickle_value *find_master(const struct pickle_value *groups, int64_t number)
{
    for (int64_t g = 0; g < pickle_count(groups); g++) {
        const struct pickle_value *group = pickle_item(groups, g);

        if (number < pickle_count(group))
            return pickle_item(group, number);
        number -= pickle_count(group);
    }
    return NULL;
}

static tp_status add_state(struct megatron_rank *r, struct torch_pieces *x, int64_t number,
                           const struct megatron_rank_param *param,
                           const struct pickle_value *optimizer, struct tp_err *err)
{
    const struct pickle_value *inner = pickle_get(optimizer, "optimizer"),
                              *masters = pickle_get(optimizer, "fp32_from_fp16_params"),
                              *state = pickle_get_number(
                                  pickle_get(inner ? inner : optimizer, "state"), number),
                              *step = pickle_get(state, "step");
    int64_t at = 0;
    tp_status st = TP_OK;

    if (!state)
        return tp_fail(err, TP_E_CORRUPT, "%s: the optimizer has no state of parameter %s",
                       path_of(x), param->name);
    for (int i = 0; i < 2; i++)
        TP_TRY(add_whole(r, x, param, moments[i].group, pickle_get(state, moments[i].key), err));
    if (masters)
        TP_TRY(add_whole(r, x, param, GROUP_MASTER, find_master(masters, number), err));
    if (torch_tensor_is(step)) {
        TP_TRY(torch_pieces_number(&at, x, step, param->name, err));
        TP_TRY(piece_source_set_step(r->source, at, param->name, err));
    }
done:
    return st;
}

tp_status megatron_optimizer_add(struct megatron_rank *r, struct torch_pieces *x,
                                 struct tp_err *err)
{
    const struct pickle_value *optimizer = pickle_get(x->root, "optimizer"),
                              *inner = pickle_get(optimizer, "optimizer"),
                              *state = pickle_get(inner ? inner : optimizer, "state");
    int64_t number = 0;
    tp_status st = TP_OK;

    if (pickle_entries(state) == 0)
        return TP_OK; /* no optimizer, or the distributed one */
    for (int vectors = 0; vectors < 2; vectors++)
        for (int i = 0; i < r->n_params && !st; i++)
            if ((r->params[i].ndim == 1) == vectors)
                st = add_state(r, x, number++, &r->params[i], optimizer, err);
    if (!st && number != pickle_entries(state))
        st = tp_fail(err, TP_E_CORRUPT, "%s: the optimizer has %lld parameters, the model %lld",
                     path_of(x), (long long)pickle_entries(state), (long long)number);
    return st;
}

/* ---- the distributed optimizer ---- */

/* Add a flat buffer with the parameters of a chunk. */
static tp_status add_flat(struct megatron_rank *r, struct torch_pieces *x, int chunk,
                          const char *group, const struct pickle_value *v, int64_t unpadded,
                          struct tp_err *err)
{
    struct piece flat;
    int64_t at = 0;
    tp_status st = torch_pieces_tensor(&flat, x, v, group, group, err);

    if (st)
        return st;
    if (flat.ndim != 1 || flat.stride[0] > 1 || flat.dtype == DTYPE_COUNT)
        return tp_fail(err, TP_E_CORRUPT, "%s: %s is no flat buffer", path_of(x), group);
    for (int i = r->n_params - 1; i >= 0; i--) {
        const struct megatron_rank_param *param = &r->params[i];
        const int64_t n = megatron_rank_elements(param);
        struct piece p = flat;

        if (param->chunk != chunk)
            continue;
        at = (at + FLAT_ALIGN - 1) / FLAT_ALIGN * FLAT_ALIGN;
        if (n > flat.shape[0] - at)
            break;
        p.begin += at * dtype_bytes(p.dtype);
        TP_TRY(megatron_rank_add(r, param, &p, 0, n, err));
        at += n;
    }
    if (at != unpadded)
        st =
            tp_fail(err, TP_E_CORRUPT,
                    "%s: the buffer %s has %lld elements, but one bucket of the model's parameters "
                    "has %lld; several buckets are not supported in this format",
                    path_of(x), group, (long long)unpadded, (long long)at);
done:
    return st;
}

static tp_status add_buffers(struct megatron_rank *r, struct torch_pieces *x, struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int chunk = 0; chunk < r->vpp && !st; chunk++) {
        const struct pickle_value *buffers = pickle_get_number(x->root, chunk),
                                  *buffer = pickle_entry(buffers, 0);
        int64_t unpadded = -1;

        if (pickle_entries(buffers) != 1 || !pickle_is(buffer, PICKLE_DICT) ||
            !pickle_int(&unpadded, pickle_get(buffer, "numel_unpadded")))
            return tp_fail(err, TP_E_CORRUPT,
                           "%s: is no state of a distributed optimizer with one buffer for each "
                           "model chunk",
                           path_of(x));
        for (int i = 0; i < 2 && !st; i++)
            st = add_flat(r, x, chunk, moments[i].group, pickle_get(buffer, moments[i].key),
                          unpadded, err);
        if (!st)
            st = add_flat(r, x, chunk, GROUP_MASTER, pickle_get(buffer, "param"), unpadded, err);
    }
    return st;
}

tp_status megatron_optimizer_add_distributed(struct megatron_rank *r, struct tp_err *err)
{
    struct torch_pieces x = { .source = r->source };
    char path[PATH_MAX];
    int file = 0;
    tp_status st;

    TP_TRY(megatron_rank_path(path, r, "distrib_optim.pt", err));
    if (!file_exists(path))
        return TP_OK;
    TP_TRY(file_table_add(piece_source_files(r->source), &file, path, err));
    TP_TRY(torch_pieces_open(&x, r->source, file, 0, -1, err));
    TP_TRY(add_buffers(r, &x, err));
done:
    torch_pieces_close(&x);
    return st;
}
