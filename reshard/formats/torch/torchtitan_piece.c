/* reshard/formats/torch/torchtitan_piece.c - see reshard/formats/torch/torchtitan_piece.h. */
#include "reshard/formats/torch/torchtitan_piece.h"

#include "layout/family.h"
#include "reshard/formats/pieces/module_piece.h"

/* Add a piece of one tensor whose rows are in the order that they have here. */
static tp_status add_rows(struct piece_source *s, const struct model *m,
                          const struct torchtitan_map_tensor *t, const struct piece *p,
                          struct tp_err *err)
{
    const struct family_module row = { p->name, { t->role } };

    return module_piece_add_row(s, m, &row, t->layer, p, err);
}

/* Add a box whose rows are in torchtitan's order. */
static tp_status add_pairs(struct piece_source *s, const struct model *m,
                           const struct torchtitan_map_tensor *t, const struct piece *p,
                           struct tp_err *err)
{
    const int64_t hd = m->head_dim, begin = p->box.lo[0], end = begin + p->box.len[0];
    tp_status st = TP_OK;

    if (p->shape[0] % hd != 0)
        return tp_fail(
            err, TP_E_CORRUPT,
            "%s: tensor %s has %lld rows, which is not a multiple of config.json's head_dim "
            "%lld",
            file_table_path(piece_source_files(s), p->file), p->name, (long long)p->shape[0],
            (long long)hd);
    for (int64_t i = 2 * (begin / hd); i < 2 * ((end + hd - 1) / hd) && !st; i++) {
        const struct torchtitan_map_part rows =
            torchtitan_map_rows(hd, i / 2, (int)(i % 2), begin, end);
        struct piece part = *p;

        part.box.lo[0] = rows.row;
        part.box.len[0] = rows.n;
        part.begin += (rows.at - begin) * p->stride[0] * dtype_bytes(p->dtype);
        part.stride[0] *= 2;
        if (rows.n)
            st = add_rows(s, m, t, &part, err);
    }
    return st;
}

static tp_status add_one(struct piece_source *s, const struct model *m,
                         const struct torchtitan_map_tensor *t, const struct piece *p,
                         struct tp_err *err)
{
    return p->ndim == 2 && torchtitan_map_has_pairs(m, t->role) ? add_pairs(s, m, t, p, err)
                                                                : add_rows(s, m, t, p, err);
}

/* Add what a box of the one parameter has of query, key or value. */
static tp_status add_part(struct piece_source *s, const struct model *m,
                          const struct torchtitan_map_tensor *t, const struct piece *p,
                          struct tp_err *err)
{
    const int64_t begin = p->box.lo[0], end = begin + p->box.len[0];
    tp_status st = TP_OK;

    for (int64_t head = 0; head < m->kv_heads && !st; head++) {
        const struct torchtitan_map_part rows = torchtitan_map_fused_rows(m, t->role, head);
        const int64_t lo = rows.at > begin ? rows.at : begin,
                      hi = rows.at + rows.n < end ? rows.at + rows.n : end;
        struct piece part = *p;

        part.shape[0] = rows.n * m->kv_heads;
        part.box.lo[0] = rows.row + lo - rows.at;
        part.box.len[0] = hi - lo;
        part.begin += (lo - begin) * p->stride[0] * dtype_bytes(p->dtype);
        if (lo < hi)
            st = add_one(s, m, t, &part, err);
    }
    return st;
}

static tp_status add_fused(struct piece_source *s, const struct model *m, int layer,
                           const struct piece *p, struct tp_err *err)
{
    static const enum tensor_role roles[] = { ROLE_Q, ROLE_K, ROLE_V };
    const struct box whole = box_whole(p->ndim, p->shape);
    const int64_t rows = torchtitan_map_fused_count(m);
    char has[BOX_TEXT_MAX];
    tp_status st = TP_OK;

    if (p->ndim != 2 || p->shape[0] != rows)
        return tp_fail(
            err, TP_E_CORRUPT,
            "%s: tensor %s is %s, but query, key and value of config.json's model have %lld "
            "rows",
            file_table_path(piece_source_files(s), p->file), p->name,
            box_format_shape(has, sizeof has, p->ndim, p->shape), (long long)rows);
    if (!box_contains(&whole, &p->box))
        return piece_source_add(s, p, err); /* which says so */
    for (size_t i = 0; i < sizeof roles / sizeof *roles && !st; i++) {
        const struct torchtitan_map_tensor t = { roles[i], layer };

        st = add_part(s, m, &t, p, err);
    }
    return st;
}

tp_status torchtitan_piece_add(struct piece_source *s, const struct model *m,
                               const struct torchtitan_map_tensor *t, const struct piece *p,
                               struct tp_err *err)
{
    const struct torchtitan_map_tensor q = { ROLE_Q, t->layer };
    const struct box whole = box_whole(p->ndim, p->shape);

    if (t->role == ROLE_NONE || box_is_empty(&p->box))
        return piece_source_add(s, p, err);
    if (p->dtype == DTYPE_COUNT) /* it is refused, by a name of the model */
        return add_rows(s, m, t->role == ROLE_QKV ? &q : t, p, err);
    if (t->role == ROLE_QKV)
        return add_fused(s, m, t->layer, p, err);
    if (p->ndim > 0 && !box_contains(&whole, &p->box))
        return piece_source_add(s, p, err); /* which says so */
    return add_one(s, m, t, p, err);
}

tp_status torchtitan_piece_push_pairs(struct torch_target *x, int tensor, enum dtype dtype,
                                      const struct box *box, int64_t head_dim, struct tp_err *err)
{
    const int64_t begin = box->lo[0], end = begin + box->len[0];
    const int64_t first = begin / head_dim, last = (end + head_dim - 1) / head_dim;
    const int64_t row_bytes = box->len[1] * dtype_bytes(dtype);
    const int storage = torch_save_tensor(&x->save, dtype, box->ndim, box->len);
    tp_status st = TP_OK;

    for (int64_t i = 2 * first; i < 2 * last && !st; i++) {
        const struct torchtitan_map_part rows =
            torchtitan_map_rows(head_dim, i / 2, (int)(i % 2), begin, end);
        struct box part = *box;

        part.lo[0] = rows.row;
        part.len[0] = rows.n;
        st = torch_target_add_rows(x, storage, tensor, &part, (rows.at - begin) * row_bytes,
                                   2 * row_bytes, err);
    }
    return st;
}
