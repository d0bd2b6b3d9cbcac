/* reshard/formats/pieces/piece_upload.c - a target of pieces in a store; see
 * reshard/formats/pieces/piece_target.h. */
#include <stdlib.h>

#include "reshard/formats/pieces/piece_target.h"
#include "reshard/formats/pieces/piece_target_state.h"

/* Name the bytes of a place. */
static tp_status expect_place(const struct piece_target *t, const struct piece_place *p,
                              struct upload_set *to, struct tp_err *err)
{
    const int elem = dtype_bytes(t->tensors[p->tensor].dtype);
    const int64_t rows = p->row_bytes ? p->box.len[0] : 1;
    const int64_t bytes = box_elements(&p->box) * elem / rows;
    tp_status st = TP_OK;

    for (int64_t i = 0; i < rows && !st; i++)
        st = upload_set_expect(to, p->file, p->begin + i * p->row_bytes, bytes, p->tensor,
                               p->tensor, err);
    upload_set_places(to, p->tensor, 1, p->transposed);
    if (p->sum)
        t->sum_left[p->sum - 1] += bytes * rows;
    return st;
}

/* The CRC-32 of each sum is sent when the last of its tensors is written. What has no tensor is
 * written now. */
static tp_status expect_sums(struct piece_target *t, struct upload_set *to, struct tp_err *err)
{
    int *first = calloc(2 * ((size_t)t->n_sums + 1), sizeof *first), *last = first + t->n_sums;
    tp_status st = first ? TP_OK : tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", t->dir);

    for (int i = t->n_places - 1; i >= 0 && !st; i--)
        if (t->places[i].sum)
            first[t->places[i].sum - 1] = t->places[i].tensor;
    for (int i = 0; i < t->n_places && !st; i++)
        if (t->places[i].sum)
            last[t->places[i].sum - 1] = t->places[i].tensor;
    for (int i = 0; i < t->n_sums && !st; i++) {
        const struct piece_target_sum *sum = &t->sums[i];

        if (t->sum_left[i] == 0)
            st = piece_target_write_sum(t, i, err);
        for (int k = 0; k < 2 && t->sum_left[i] > 0 && !st; k++)
            st = upload_set_expect(to, sum->file, sum->crc_at[k], PIECE_CRC_BYTES, first[i],
                                   last[i], err);
    }
    free(first);
    return st;
}

tp_status piece_target_send(struct piece_target *t, struct upload_set *to, struct tp_err *err)
{
    tp_status st = TP_OK;

    t->sum_left = arena_array(&t->arena, (size_t)t->n_sums + 1, sizeof *t->sum_left);
    if (!t->sum_left)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", t->dir);
    for (int i = 0; i < t->n_files && !st; i++)
        st = upload_set_add(to, file_table_path(t->files, i), err);
    for (int i = 0; i < t->n_places && !st; i++)
        st = expect_place(t, &t->places[i], to, err);
    if (!st)
        st = expect_sums(t, to, err);
    t->uploads = to;
    t->endpoint.read = NULL;
    t->endpoint.resumable = NULL;
    t->endpoint.any_order = false;
    t->endpoint.suspects = NULL;
    return st;
}
