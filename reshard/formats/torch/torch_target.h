/*
 * reshard/formats/torch/torch_target.h - a file of torch.save, or one of many that lie side by side
 * in a file, as a part of a target of pieces: the counterpart of
 * reshard/formats/torch/torch_pieces.h.
 *
 *     torch_target_begin(&x, target, file, begin);
 *     storage = torch_save_tensor(&x.save, ...);             the pickle is the caller's to write
 *     st = torch_target_add(&x, storage, i, &box, 0, err);   what it holds
 *     st = torch_target_finish(&x, st, err);
 */
#ifndef RESHARD_FORMATS_TORCH_TORCH_TARGET_H
#define RESHARD_FORMATS_TORCH_TORCH_TARGET_H

#include "reshard/formats/export_writer.h"
#include "reshard/formats/pieces/piece_target.h"
#include "torch/torch_save.h"

struct torch_target_part;

struct torch_target {
    struct piece_target *target;
    int file;
    int64_t begin;          /* of this torch.save file, in the file */
    struct torch_save save; /* the caller writes its pickle */
    struct torch_target_part *parts;
    int n, room;
};

/* Begin a torch.save file at byte `begin` of file number `file` of the target, which is borrowed.
 * Then write the pickle with x->save, and end. Free also after a failure. */
void torch_target_begin(struct torch_target *x, struct piece_target *target, int file,
                        int64_t begin);
void torch_target_free(struct torch_target *x);

/* Box `box` of tensor number `tensor` lies in a storage, from byte `at` of it on. */
tp_status torch_target_add(struct torch_target *x, int storage, int tensor, const struct box *box,
                           int64_t at, struct tp_err *err);

/* The same where rows of the first axis lie row_bytes apart. */
tp_status torch_target_add_rows(struct torch_target *x, int storage, int tensor,
                                const struct box *box, int64_t at, int64_t row_bytes,
                                struct tp_err *err);

/* The same with the two axes of the box exchanged in the storage. */
tp_status torch_target_add_transposed(struct torch_target *x, int storage, int tensor,
                                      const struct box *box, int64_t at, struct tp_err *err);

/* Push a tensor that is exactly this box. */
tp_status torch_target_box(struct torch_target *x, int tensor, enum dtype dtype,
                           const struct box *box, struct tp_err *err);

/* Write everything but the tensors, and give the target their places and sums. *bytes is the length
 * of this torch.save file. */
tp_status torch_target_end(struct torch_target *x, int64_t *bytes, struct tp_err *err);

/* Push the keys and values of a group that torch.optim.AdamW has, all but its parameters. */
void torch_target_push_adamw(struct pickle_writer *w, const struct export_adamw *a, double lr,
                             double weight_decay);

/* End the file if st, which is what became of its pickle, is TP_OK; free x in any case. Returns st,
 * or why it cannot be ended. */
tp_status torch_target_finish(struct torch_target *x, tp_status st, struct tp_err *err);

#endif
