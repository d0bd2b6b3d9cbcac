/*
 * reshard/formats/pieces/piece_target.h - tensors that are to lie in pieces in the files of another
 * framework, as the target of a transfer: the counterpart of reshard/formats/pieces/piece.h.
 *
 * A format's writer decides where everything goes before a byte of a tensor is known: it adds
 * files, writes what is around the tensors (headers, pickles, directories), and adds a place for
 * each box of a tensor. All further work is the same for all formats.
 *
 *     TP_TRY(piece_target_new(&t, dir, tensors, n, err));
 *     TP_TRY(piece_target_file(t, &file, "__0_0.distcp", err));
 *     TP_TRY(piece_target_add(t, &place, err));         for all boxes
 *     TP_TRY(piece_target_plan(t, err));                then the endpoint can be used
 *     TP_TRY(piece_target_finish(t, err));              after the transfer
 */
#ifndef RESHARD_FORMATS_PIECES_PIECE_TARGET_H
#define RESHARD_FORMATS_PIECES_PIECE_TARGET_H

#include "comm/control.h"
#include "core/arena.h"
#include "layout/tensor.h"
#include "reshard/engine/endpoint.h"
#include "reshard/formats/export_writer.h"
#include "reshard/formats/pieces/piece_place.h"
#include "reshard/formats/upload_set.h"
#include "torch/file_part.h"

struct piece_target;

/* A target for tensors[0 .. n - 1] in the folder `dir`; both are borrowed. */
tp_status piece_target_new(struct piece_target **out, const char *dir, const struct tensor *tensors,
                           int n, struct tp_err *err);
void piece_target_close(struct piece_target *t);

/* For tables that live as long as the target. */
struct arena *piece_target_arena(struct piece_target *t);

/* Add a file, `name` in the folder; it may be in folders of its own, which are created. */
tp_status piece_target_file(struct piece_target *t, int *file, const char *name,
                            struct tp_err *err);

/* Use a file to write what is around the tensors; *part has descriptor and path. Release it
 * afterwards. */
tp_status piece_target_use(struct piece_target *t, int file, struct file_part *part,
                           struct tp_err *err);
void piece_target_release(struct piece_target *t, int file);

/* Add a sum; *number, from 1 on, is for places. */
tp_status piece_target_sum(struct piece_target *t, int *number, const struct piece_target_sum *sum,
                           struct tp_err *err);

/* Add a place; an empty box adds nothing. Several places of one box get the same bytes. */
tp_status piece_target_add(struct piece_target *t, const struct piece_place *place,
                           struct tp_err *err);

/* After all places were added: make the endpoint. Tensor i of the transfer is tensors[i]; its
 * digests are of what was written. */
tp_status piece_target_plan(struct piece_target *t, struct tp_err *err);
const struct reshard_endpoint *piece_target_endpoint(const struct piece_target *t);

/* After the transfer: write the sums, and fsync all files. */
tp_status piece_target_finish(struct piece_target *t, struct tp_err *err);

/* After the plan: tensors are sent to a store, as `send` of reshard/formats/export_format.h. */
tp_status piece_target_send(struct piece_target *t, struct upload_set *to, struct tp_err *err);

/* Several processes write the files that rank 0 has created: *t is its target, after the plan; on
 * the other ranks it is new, with the same tensors and the same folder, and is planned too. After
 * the transfer each process syncs what it wrote (the endpoint's `resumable`), and then rank 0
 * finishes. Collective. */
tp_status piece_target_share(struct piece_target *t, struct comm_control *control,
                             struct tp_err *err);

/* The same as a row of reshard/formats/export_format.h. */
struct export_writer piece_target_writer(struct piece_target *t);
tp_status piece_target_export_send(struct export_writer *w, struct upload_set *to,
                                   struct tp_err *err);
tp_status piece_target_export_finish(struct export_writer *w, struct tp_err *err);
tp_status piece_target_export_keep(struct export_writer *w, const char *dir, const char *journal,
                                   struct tp_err *err);
tp_status piece_target_export_share(struct export_writer *w, const struct export_contents *q,
                                    struct comm_control *control, struct tp_err *err);
void piece_target_export_close(struct export_writer *w);

#endif
