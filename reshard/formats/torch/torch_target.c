/* reshard/formats/torch/torch_target.c - see reshard/formats/torch/torch_target.h. */
#include "reshard/formats/torch/torch_target.h"

#include <stdlib.h>

/* What a storage holds, from byte `at` of it on. */
struct torch_target_part {
    int storage, tensor;
    struct box box;
    int64_t at, row_bytes;
    bool transposed;
};

void torch_target_begin(struct torch_target *x, struct piece_target *target, int file,
                        int64_t begin)
{
    *x = (struct torch_target){ .target = target, .file = file, .begin = begin };
    torch_save_begin(&x->save);
}

void torch_target_free(struct torch_target *x)
{
    torch_save_free(&x->save);
    free(x->parts);
    *x = (struct torch_target){ 0 };
}

tp_status torch_target_add(struct torch_target *x, int storage, int tensor, const struct box *box,
                           int64_t at, struct tp_err *err)
{
    return torch_target_add_rows(x, storage, tensor, box, at, 0, err);
}

tp_status torch_target_add_rows(struct torch_target *x, int storage, int tensor,
                                const struct box *box, int64_t at, int64_t row_bytes,
                                struct tp_err *err)
{
    if (x->n == x->room) {
        const int room = x->room ? 2 * x->room : 8;
        struct torch_target_part *grown = realloc(x->parts, (size_t)room * sizeof *grown);

        if (!grown)
            return tp_fail(err, TP_E_NOMEM, "no memory for a list of tensors");
        x->parts = grown;
        x->room = room;
    }
    x->parts[x->n++] = (struct torch_target_part){ storage, tensor, *box, at, row_bytes, false };
    return TP_OK;
}

tp_status torch_target_add_transposed(struct torch_target *x, int storage, int tensor,
                                      const struct box *box, int64_t at, struct tp_err *err)
{
    const tp_status st = torch_target_add(x, storage, tensor, box, at, err);

    if (!st)
        x->parts[x->n - 1].transposed = true;
    return st;
}

tp_status torch_target_box(struct torch_target *x, int tensor, enum dtype dtype,
                           const struct box *box, struct tp_err *err)
{
    const int storage = torch_save_tensor(&x->save, dtype, box->ndim, box->len);

    return torch_target_add(x, storage, tensor, box, 0, err);
}

/* A sum for each storage that is written later; numbers[storage] is its number. */
static tp_status add_sums(struct torch_target *x, int *numbers, struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int i = 0; i < x->save.n && !st; i++) {
        const struct zip_plan_member *m = torch_save_member(&x->save, i);
        const struct piece_target_sum sum = { .file = x->file,
                                              .begin = x->begin + m->begin,
                                              .size = m->size,
                                              .crc_at = { x->begin + m->crc_at[0],
                                                          x->begin + m->crc_at[1] } };

        if (!m->data)
            st = piece_target_sum(x->target, &numbers[i], &sum, err);
    }
    return st;
}

tp_status torch_target_end(struct torch_target *x, int64_t *bytes, struct tp_err *err)
{
    int *sums = calloc((size_t)x->save.n + 1, sizeof *sums);
    struct file_part part;
    tp_status st;

    if (!sums)
        return tp_fail(err, TP_E_NOMEM, "no memory for a list of tensors");
    TP_TRY(torch_save_place(&x->save, err));
    TP_TRY(piece_target_use(x->target, x->file, &part, err));
    st = torch_save_write(&x->save, part.object.fd, part.path, x->begin, err);
    piece_target_release(x->target, x->file);
    if (!st)
        st = add_sums(x, sums, err);
    for (int i = 0; i < x->n && !st; i++) {
        const struct torch_target_part *p = &x->parts[i];
        const struct piece_place place = {
            .tensor = p->tensor,
            .box = p->box,
            .file = x->file,
            .begin = x->begin + torch_save_member(&x->save, p->storage)->begin + p->at,
            .row_bytes = p->row_bytes,
            .sum = sums[p->storage],
            .transposed = p->transposed,
        };

        st = piece_target_add(x->target, &place, err);
    }
    if (!st)
        *bytes = torch_save_bytes(&x->save);
done:
    free(sums);
    return st;
}

tp_status torch_target_finish(struct torch_target *x, tp_status st, struct tp_err *err)
{
    int64_t bytes;

    if (!st)
        st = torch_target_end(x, &bytes, err);
    torch_target_free(x);
    return st;
}

void torch_target_push_adamw(struct pickle_writer *w, const struct export_adamw *a, double lr,
                             double weight_decay)
{
    pickle_write_key_float(w, "lr", lr);
    pickle_write_key_floats(w, "betas", a->beta1, a->beta2);
    pickle_write_key_float(w, "eps", a->eps);
    pickle_write_key_float(w, "weight_decay", weight_decay);
    pickle_write_key_bool(w, "amsgrad", false);
    pickle_write_key_bool(w, "maximize", false);
    pickle_write_key_none(w, "foreach");
    pickle_write_key_bool(w, "capturable", false);
    pickle_write_key_bool(w, "differentiable", false);
    pickle_write_key_none(w, "fused");
    pickle_write_key_bool(w, "decoupled_weight_decay", true);
}
