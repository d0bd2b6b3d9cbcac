/* reshard/formats/megatron/fused_piece.c - see reshard/formats/megatron/fused_piece.h. */
#include "reshard/formats/megatron/fused_piece.h"

#include <string.h>

/* Whether the rows that were found are all of the tensor, but for the padding of the vocabulary. */
static bool fits(const struct piece *p, const char *name, const struct megatron_rows *rows, int n)
{
    int64_t all = 0;

    for (int i = 0; i < n; i++) {
        all += rows[i].n;
        if (rows[i].tensor->ndim != p->ndim ||
            (p->ndim == 2 && megatron_rows_columns(&rows[i]) != p->shape[1]))
            return false;
    }
    return all == p->shape[0] || (megatron_map_is_vocabulary(name) && all < p->shape[0]);
}

tp_status fused_piece_add(struct piece_source *s, struct megatron_map *map, const struct piece *p,
                          const struct fused_piece_tensor *t, struct tp_err *err)
{
    const int64_t lo = p->box.lo[0], end = lo + p->box.len[0];
    struct megatron_rows *rows = NULL;
    int n = 0;
    enum megatron_found found;
    tp_status st = TP_OK;

    if (t->layer < 0 && megatron_map_is_vocabulary(t->name)) {
        map->padded_vocab = p->shape[0];
        piece_source_set_vocab_rows(s, map->padded_vocab);
    }
    found = megatron_map_find_own(&rows, &n, map, t->name, t->layer, 0);
    if (!rows)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for the rows of its tensors",
                       piece_source_path(s));
    if (found == MEGATRON_UNKNOWN) {
        struct piece unknown = *p;

        unknown.group = t->unknown;
        return piece_source_add(s, &unknown, err);
    }
    if (found == MEGATRON_FOUND && !fits(p, t->name, rows, n))
        return tp_fail(err, TP_E_CORRUPT, "%s: tensor %s has another shape than the model says",
                       file_table_path(piece_source_files(s), p->file), p->name);
    for (int i = 0; i < n && !st && found == MEGATRON_FOUND; i++) {
        const int64_t from = rows[i].row > lo ? rows[i].row : lo,
                      rows_end = rows[i].row + rows[i].n, to = rows_end < end ? rows_end : end;
        const int out = rows[i].transposed, in = 1 - out;
        struct piece part = *p;

        if (from >= to)
            continue;
        part.name = rows[i].tensor->name;
        memcpy(part.shape, rows[i].tensor->shape, sizeof part.shape);
        part.box.lo[out] = rows[i].to + from - rows[i].row;
        part.box.len[out] = to - from;
        part.stride[out] = p->stride[0];
        if (p->ndim == 2) {
            part.box.lo[in] = p->box.lo[1];
            part.box.len[in] = p->box.len[1];
            part.stride[in] = p->stride[1];
        }
        part.begin += (from - lo) * p->stride[0] * dtype_bytes(p->dtype);
        st = piece_source_add(s, &part, err);
    }
    return st;
}
