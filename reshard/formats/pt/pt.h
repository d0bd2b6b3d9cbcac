/*
 * reshard/formats/pt/pt.h - one file of torch.save with a model's state_dict(), and mostly with
 * that of its optimizer: model.pt, or epoch=1-step=100.ckpt of Lightning. The path is that of the
 * file.
 */
#ifndef RESHARD_FORMATS_PT_PT_H
#define RESHARD_FORMATS_PT_PT_H

#include <limits.h>

#include "layout/model.h"
#include "reshard/formats/pieces/piece.h"

/* Whether it is an archive, or its name is that of such a file. */
bool pt_detect(const char *path);

/* Add the weights, and AdamW's state if it is known whose it is; else it is refused
 * (piece_source_refuse_state). m may be NULL. TP_E_USAGE: there are several models, and none has
 * the usual key. */
tp_status pt_read(struct piece_source *s, const struct model *m, struct tp_err *err);

/* The folder of the file. */
tp_status pt_assets(char dir[PATH_MAX], const char *path, struct tp_err *err);

#endif
