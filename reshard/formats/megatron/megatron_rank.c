/* reshard/formats/megatron/megatron_rank.c - see reshard/formats/megatron/megatron_rank.h. */
#include "reshard/formats/megatron/megatron_rank.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "reshard/formats/megatron/megatron_stages.h"
#include "reshard/formats/pieces/flat_pieces.h"

enum { NAME_BYTES = 64 };

tp_status megatron_rank_path(char path[PATH_MAX], const struct megatron_rank *r, const char *file,
                             struct tp_err *err)
{
    char stage[NAME_BYTES] = "", expert[NAME_BYTES] = "", name[4 * NAME_BYTES];

    if (r->args.pp > 1)
        snprintf(stage, sizeof stage, "_%03d", r->pp_rank);
    if (r->args.ep > 1)
        snprintf(expert, sizeof expert, "_%03d", r->map.ep_rank);
    snprintf(name, sizeof name, "mp_rank_%02d%s%s/%s", r->tp_rank, stage, expert, file);
    return file_join(path, r->dir, name, err);
}

int64_t megatron_rank_elements(const struct megatron_rank_param *param)
{
    return param->shape[0] * (param->ndim == 2 ? param->shape[1] : 1);
}

/* The first element of `part` is that of columns column .. column + n - 1 of rows, and its strides
 * are those of Megatron's tensor: add it to the model's. */
static tp_status add_box(struct megatron_rank *r, struct piece *part,
                         const struct megatron_rows *rows, int64_t column, int64_t n,
                         struct tp_err *err)
{
    const int64_t stride = part->stride[0];

    part->name = rows->tensor->name;
    part->ndim = rows->tensor->ndim;
    memcpy(part->shape, rows->tensor->shape, sizeof part->shape);
    part->box = megatron_rows_box(rows, column, n);
    if (rows->transposed) {
        part->stride[0] = part->stride[1];
        part->stride[1] = stride;
    }
    return piece_source_add(r->source, part, err);
}

/* Whether a matrix is stored row by row without gaps. */
static bool is_contiguous(const struct piece *p)
{
    return p->ndim == 2 && (p->shape[1] == 1 || p->stride[1] == 1) &&
           (p->shape[0] == 1 || p->stride[0] == p->shape[1]);
}

tp_status megatron_rank_add_tensor(struct megatron_rank *r, const struct megatron_rank_param *param,
                                   const struct piece *p, struct tp_err *err)
{
    tp_status st = TP_OK;

    if (param->stack.n > 0 && !is_contiguous(p))
        return tp_fail(err, TP_E_CORRUPT, "%s: %s of the experts is not stored row by row", r->dir,
                       param->name);
    if (param->stack.n > 0)
        return megatron_stacked_add(r, param, p, 0, megatron_rank_elements(param), err);
    for (int i = 0; i < param->n_rows && !st; i++) {
        struct piece part = *p;

        part.begin += param->rows[i].row * p->stride[0] * dtype_bytes(p->dtype);
        st = add_box(r, &part, &param->rows[i], 0, param->ndim == 2 ? param->shape[1] : 1, err);
    }
    return st;
}

/* Add elements at .. at + n - 1 of rows that are columns of the model's tensor: the rest of a row,
 * whole rows, the beginning of a row. */
static tp_status add_transposed(struct megatron_rank *r, const struct megatron_rows *rows,
                                const struct piece *p, int64_t columns, int64_t at, int64_t n,
                                struct tp_err *err)
{
    const int64_t end = at + n;
    tp_status st = TP_OK;

    for (int64_t next; at < end && !st; at = next) {
        const int64_t column = at % columns,
                      whole = column == 0 && end - at >= columns ? (end - at) / columns : 0;
        struct megatron_rows some = *rows;
        struct piece part = *p;

        next = whole                         ? at + whole * columns
               : at - column + columns < end ? at - column + columns
                                             : end;
        some.to += at / columns;
        some.n = whole ? whole : 1;
        part.begin += (at - (end - n)) * dtype_bytes(p->dtype);
        part.stride[0] = columns;
        part.stride[1] = 1;
        st = add_box(r, &part, &some, column, whole ? columns : next - at, err);
    }
    return st;
}

tp_status megatron_rank_add(struct megatron_rank *r, const struct megatron_rank_param *param,
                            const struct piece *p, int64_t first, int64_t n, struct tp_err *err)
{
    const int64_t columns = param->ndim == 2 ? param->shape[1] : 1;
    tp_status st = TP_OK;

    if (param->stack.n > 0)
        return megatron_stacked_add(r, param, p, first, n, err);
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
        part.box = megatron_rows_box(rows, 0, columns);
        part.begin = p->begin + (from - first) * dtype_bytes(p->dtype);
        st = rows->transposed ? add_transposed(r, rows, &part, columns, from - at, to - from, err)
                              : flat_pieces_add(r->source, NULL, &part, from - at, to - from, err);
    }
    return st;
}

tp_status megatron_rank_stages(struct megatron_rank *r, const char *path, struct tp_err *err)
{
    r->map.tp = r->args.tp;
    r->map.ep = r->args.ep;
    r->map.expert_block = r->args.expert_block;
    r->map.expert_cuts = 1;
    return megatron_stages_check(&r->args, r->map.model->layers, path, err);
}

/* ---- parameters ---- */

/* "decoder.layers.3.mlp.linear_fc1.weight" of this rank's chunk is layer *layer of the model, and
 * the rest of the name is returned. A name outside of layers has layer -1. */
static const char *find_layer(int *layer, const struct megatron_rank *r, int chunk,
                              const char *name)
{
    static const char head[] = "decoder.layers.";
    const struct megatron_stage_layers of_chunk =
        megatron_stages_find(&r->args, r->map.model->layers, r->pp_rank, chunk);
    char *end;
    long local;

    *layer = -1;
    if (strncmp(name, head, sizeof head - 1) != 0)
        return name;
    local = strtol(name + sizeof head - 1, &end, 10);
    if (*end != '.' || local < 0 || local >= of_chunk.n)
        return NULL;
    *layer = of_chunk.first + (int)local;
    return end + 1;
}

static tp_status refuse(const struct megatron_rank *r, const struct torch_pieces *x,
                        const char *name, const char *what, struct tp_err *err)
{
    return tp_fail(err, TP_E_CORRUPT, "%s: tensor %s %s",
                   file_table_path(piece_source_files(r->source), x->file), name, what);
}

bool megatron_rank_fits(const struct megatron_rank *r, const struct megatron_rank_param *p)
{
    int64_t rows = 0;

    for (int i = 0; i < p->n_rows; i++) {
        const struct megatron_rows *x = &p->rows[i];
        const int64_t columns = megatron_rows_columns(x);

        rows += x->n;
        if (x->tensor->ndim != p->ndim || x->to + x->n > x->tensor->shape[x->transposed] ||
            (p->ndim == 2 && p->shape[1] != columns &&
             (columns % r->map.tp != 0 || p->shape[1] != columns / r->map.tp)))
            return false;
    }
    return p->n_rows == 0 || rows == p->shape[0] ||
           (megatron_map_is_vocabulary(p->name) && rows < p->shape[0]); /* padding */
}

/* GroupedMLP's weight1 or weight2. */
static tp_status add_stacked(struct megatron_rank *r, struct torch_pieces *x,
                             struct megatron_rank_param *p, const char *name, int layer,
                             const struct piece *piece, struct tp_err *err)
{
    int64_t found[2];

    memcpy(found, p->shape, sizeof found);
    if (!megatron_stacked_find(p, r, name, layer))
        return piece_source_add(r->source, piece, err);
    if (piece->ndim != 2 || memcmp(found, p->shape, sizeof found) != 0)
        return refuse(r, x, p->name, "has another shape than the model says", err);
    return megatron_rank_add_tensor(r, p, piece, err);
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
    if (p->ndim < 1 || p->ndim > 2)
        return refuse(r, x, key, "is neither a matrix nor a vector", err);
    memcpy(p->shape, piece.shape, sizeof p->shape);
    name = find_layer(&layer, r, chunk, key);
    if (!name)
        return refuse(r, x, key, "is of a layer that the model does not have", err);
    if (layer < 0 && p->ndim == 2 && megatron_map_is_vocabulary(name)) {
        r->map.padded_vocab = p->shape[0] * r->args.tp;
        piece_source_set_vocab_rows(r->source, r->map.padded_vocab);
    }
    p->shared = r->map.model->tied && r->args.pp > 1 && megatron_map_is_vocabulary(name);
    p->expert = layer >= 0 && megatron_map_is_expert(name);
    if (layer >= 0 && megatron_stacked_is(name))
        return add_stacked(r, x, p, name, layer, &piece, err);
    found = megatron_map_find(&p->rows, &p->n_rows, &r->map, name, layer, r->tp_rank);
    if (found == MEGATRON_FOUND && !p->expert && r->map.ep_rank > 0)
        p->n_rows = 0;             /* the first expert-parallel rank has the same */
    if (found == MEGATRON_UNKNOWN) /* the import decides: it may be left out on purpose */
        return piece_source_add(r->source, &piece, err);
    if (!megatron_rank_fits(r, p))
        return refuse(r, x, key, "has another shape than the model says", err);
    if (found == MEGATRON_FOUND)
        st = megatron_rank_add_tensor(r, p, &piece, err);
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
            return refuse(r, x, "?", "has a name that is not text", err);
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
