/*
 * reshard/formats/pieces/flat_pieces.h - an interval of a flattened tensor, as the flat buffers of
 * optimizers have it, as pieces.
 */
#ifndef RESHARD_FORMATS_PIECES_FLAT_PIECES_H
#define RESHARD_FORMATS_PIECES_FLAT_PIECES_H

#include "layout/model.h"
#include "reshard/formats/pieces/piece.h"

/* Add elements first .. first + n - 1 of the box p->box, counted in its row-major order; they lie
 * in the file one after the other from byte p->begin on. p->stride is not used. An interval becomes
 * at most 2 * axes - 1 pieces, which module_piece_add adds: m is as there. */
tp_status flat_pieces_add(struct piece_source *s, const struct model *m, const struct piece *p,
                          int64_t first, int64_t n, struct tp_err *err);

/* The strides of a box whose elements lie one after the other, in row-major order; returns how many
 * there are. */
int64_t flat_pieces_strides(int64_t *stride, const struct box *whole);

/* The largest box that begins at element `at` of `whole`, which has these strides, and ends before
 * `end`. */
struct box flat_pieces_box(const struct box *whole, const int64_t *stride, int64_t at, int64_t end);

/* Whether the elements of a piece lie in the file one after the other, in row-major order. */
bool flat_pieces_is_dense(const struct piece *p);

#endif
