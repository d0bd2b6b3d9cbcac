/* reshard/formats/megatron/megatron_rank.c - see reshard/formats/megatron/megatron_rank.h. */
#include "reshard/formats/megatron/megatron_rank.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "reshard/formats/pieces/flat_pieces.h"

enum { NAME_BYTES = 64 };

tp_status megatron_rank_path(char path[PATH_MAX], const struct megatron_rank *r, const char *file,
                             struct tp_err *err)
{
    char name[NAME_BYTES];

    if (r->args.pp > 1)
        snprintf(name, sizeof name, "mp_rank_%02d_%03d/%s", r->tp_rank, r->pp_rank, file);
    else
        snprintf(name, sizeof name, "mp_rank_%02d/%s", r->tp_rank, file);
    return file_join(path, r->dir, name, err);
}

int64_t megatron_rank_elements(const struct megatron_rank_param *param)
{
    return param->shape[0] * (param->ndim == 2 ? param->shape[1] : 1);
}

tp_status megatron_rank_add(struct megatron_rank *r, const struct megatron_rank_param *param,
                            const struct piece *p, int64_t first, int64_t n, struct tp_err *err)
{
    const int64_t columns = param->ndim == 2 ? param->shape[1] : 1;
    tp_status st = TP_OK;

    for (int i = 0; i < param->n_rows && !st; i++) {
        const struct megatron_rows *rows = &param->rows[i];
        const int64_t at = rows->row * columns, end = at + rows->n * columns;
        const int64_t from = at > first ? at : first, to = end < first + n ? end : first + n;
        struct piece part = *p;

        if (from >= to)
            continue;
        part.name = rows->tensor->name;
        part.ndim = rows->tensor->ndim;
        memcpy(part.shape, rows->tensor->shape, sizeof part.shape);
        part.box = (struct box){ param->ndim, { rows->to, rows->column }, { rows->n, columns } };
        part.begin = p->begin + (from - first) * dtype_bytes(p->dtype);
        st = flat_pieces_add(r->source, &part, from - at, to - from, err);
    }
    return st;
}

tp_status megatron_rank_stages(struct megatron_rank *r, const char *path, struct tp_err *err)
{
    const int layers = r->map.model->layers, stages = r->args.pp * r->args.vpp;

    r->map.tp = r->args.tp;
    if (layers % stages != 0)
        return tp_fail(err, TP_E_USAGE,
                       "%s: %d layers in %d stages: stages with unequal layers are not supported",
                       path, layers, stages);
    return TP_OK;
}

/* ---- parameters ---- */

/* "decoder.layers.3.mlp.linear_fc1.weight" of this rank's chunk is layer *layer of the model, and
 * the rest of the name is returned. A name outside of layers has layer -1. */
static const char *find_layer(int *layer, const struct megatron_rank *r, int chunk,
                              const char *name)
{
    static const char head[] = "decoder.layers.";
    const int per_chunk = r->map.model->layers / (r->args.pp * r->args.vpp);
    char *end;
    long local;

    *layer = -1;
    if (strncmp(name, head, sizeof head - 1) != 0)
        return name;
    local = strtol(name + sizeof head - 1, &end, 10);
    if (*end != '.' || local < 0 || local >= per_chunk)
        return NULL;
    *layer = (chunk * r->args.pp + r->pp_rank) * per_chunk + (int)local;
    return end + 1;
}

static tp_status refuse(const struct megatron_rank *r, const struct torch_pieces *x,
                        const char *name, const char *what, struct tp_err *err)
{
    return tp_fail(err, TP_E_CORRUPT, "%s: tensor %s %s",
                   file_table_path(piece_source_files(r->source), x->file), name, what);
}

/* Whether the rank's tensor has the rows that were found, and as many columns. */
static bool fits(const struct megatron_rank *r, const struct megatron_rank_param *p)
{
    int64_t rows = 0;

    for (int i = 0; i < p->n_rows; i++) {
        const struct megatron_rows *x = &p->rows[i];

        rows += x->n;
        if (x->tensor->ndim != p->ndim || x->to + x->n > x->tensor->shape[0] ||
            (p->ndim == 2 && p->shape[1] != x->tensor->shape[1] &&
             p->shape[1] * r->map.tp != x->tensor->shape[1]))
            return false;
    }
    return p->n_rows == 0 || rows == p->shape[0] ||
           (p->rows[0].tensor->layer < 0 && rows < p->shape[0]); /* padding of the vocabulary */
}

static tp_status add_param(struct megatron_rank *r, struct torch_pieces *x, int chunk,
                           const char *key, const struct pickle_value *v, struct tp_err *err)
{
    struct megatron_rank_param *p = &r->params[r->n_params++];
    enum megatron_found found;
    const char *name;
    struct piece piece;
    int layer = 0;
    tp_status st;

    p->name = arena_strdup(piece_source_arena(r->source), key);
    if (!p->name)
        return tp_fail(err, TP_E_NOMEM, "no memory for the name of a tensor");
    p->chunk = chunk;
    TP_TRY(torch_pieces_tensor(&piece, x, v, GROUP_PARAM, p->name, err));
    p->ndim = piece.ndim;
    if (p->ndim < 1 || p->ndim > 2 || !flat_pieces_is_dense(&piece))
        return refuse(r, x, key, "is neither a dense matrix nor a vector", err);
    memcpy(p->shape, piece.shape, sizeof p->shape);
    name = find_layer(&layer, r, chunk, key);
    if (!name)
        return refuse(r, x, key, "is of a layer that the model does not have", err);
    if (layer < 0 && p->ndim == 2)
        r->map.padded_vocab = p->shape[0] * r->args.tp;
    p->shared = r->map.model->tied && r->args.pp > 1 && layer < 0 && p->ndim == 2;
    found = megatron_map_find(&p->rows, &p->n_rows, &r->map, name, layer, r->tp_rank);
    if (found == MEGATRON_UNKNOWN) /* the import decides: it may be left out on purpose */
        return piece_source_add(r->source, &piece, err);
    if (!fits(r, p))
        return refuse(r, x, key, "has another shape than the model says", err);
    if (found == MEGATRON_FOUND)
        st = megatron_rank_add(r, p, &piece, 0, megatron_rank_elements(p), err);
done:
    return st;
}

static tp_status add_chunk(struct megatron_rank *r, struct torch_pieces *x, int chunk,
                           const struct pickle_value *model, struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int64_t i = 0; i < pickle_entries(model) && !st; i++) {
        const char *key = pickle_text(pickle_key(model, i));
        const struct pickle_value *v = pickle_entry(model, i);

        if (!key)
            return refuse(r, x, "?", "has a name that is no text", err);
        if (torch_tensor_is(v) && !strstr(key, "_extra_state"))
            st = add_param(r, x, chunk, key, v, err);
    }
    return st;
}

tp_status megatron_rank_weights(struct megatron_rank *r, struct torch_pieces *x, struct tp_err *err)
{
    struct arena *arena = piece_source_arena(r->source);
    int64_t n = 0;
    tp_status st = TP_OK;

    for (int chunk = 0; chunk < r->args.vpp; chunk++) {
        char key[NAME_BYTES] = "model";

        if (r->args.vpp > 1)
            snprintf(key, sizeof key, "model%d", chunk);
        if (!pickle_is(pickle_get(x->root, key), PICKLE_DICT))
            return tp_fail(err, TP_E_CORRUPT, "%s: has no state dict \"%s\"",
                           file_table_path(piece_source_files(r->source), x->file), key);
        n += pickle_entries(pickle_get(x->root, key));
    }
    r->n_params = 0;
    r->params = arena_array(arena, (size_t)n + 1, sizeof *r->params);
    if (!r->params)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its tensors", r->dir);
    for (int chunk = 0; chunk < r->args.vpp && !st; chunk++) {
        char key[NAME_BYTES] = "model";

        if (r->args.vpp > 1)
            snprintf(key, sizeof key, "model%d", chunk);
        st = add_chunk(r, x, chunk, pickle_get(x->root, key), err);
    }
    return st;
}
