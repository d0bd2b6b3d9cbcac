/*
 * reshard/formats/pieces/module_piece.h - pieces by the names that transformers 5 has in a model's
 * modules: inside reshard/formats/ only.
 *
 * A state dict of such a program has one tensor for all experts of a layer, and other names than
 * the files of the model (struct family_module, layout/family.h).
 */
#ifndef RESHARD_FORMATS_PIECES_MODULE_PIECE_H
#define RESHARD_FORMATS_PIECES_MODULE_PIECE_H

#include "layout/family.h"
#include "layout/model.h"
#include "reshard/formats/pieces/piece.h"

/* Add a piece (and piece_source_set_module_names), by the name that the model's files have if its
 * name is that of a module, and of stacked experts as a piece of each tensor of each. m NULL: it is
 * added as it is. TP_E_CORRUPT: as piece_source_add, or stacked experts have another shape than the
 * model's. */
tp_status module_piece_add(struct piece_source *s, const struct model *m, const struct piece *p,
                           struct tp_err *err);

/* The same of a tensor of another framework whose roles are known, whatever its name is. The family
 * has tensors of these roles; `layer` is 0 where they have none. */
tp_status module_piece_add_row(struct piece_source *s, const struct model *m,
                               const struct family_module *row, int layer, const struct piece *p,
                               struct tp_err *err);

#endif
