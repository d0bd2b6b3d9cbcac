/*
 * reshard/formats/megatron/megatron.h - Megatron-LM's checkpoints of before torch_dist ("legacy"):
 * a folder for each tensor-parallel, pipeline and expert-parallel rank.
 *
 *     iter_0000100/mp_rank_TT[_PPP][_EEE]/model_optim_rng.pt   weights; the ordinary optimizer
 *                                        /distrib_optim.pt     the distributed optimizer, flat
 */
#ifndef RESHARD_FORMATS_MEGATRON_MEGATRON_H
#define RESHARD_FORMATS_MEGATRON_MEGATRON_H

#include "layout/model.h"
#include "reshard/formats/export_writer.h"
#include "reshard/formats/pieces/piece.h"

bool megatron_detect(const char *path);

/* Make a config.json of the arguments in the first rank's file (megatron_config.h). */
tp_status megatron_config(const char **text, const char **note, struct piece_source *s,
                          struct tp_err *err);

/* Add everything of the folder to s. The model is needed, because the files have neither the shapes
 * of whole tensors nor the number of heads. */
tp_status megatron_read(struct piece_source *s, const struct model *m, struct tp_err *err);

/* Write one for the layout's tp, pp, vpp and ep: a row of reshard/formats/export_format.h.
 * TP_E_LAYOUT: they do not divide the model as Megatron does. TP_E_USAGE: a tensor of the model has
 * no place in this format. */
tp_status megatron_export_create(struct export_writer *w, const struct export_contents *q,
                                 struct tp_err *err);

/* Write the file that names the iteration. */
tp_status megatron_write_latest(const struct export_contents *q, struct tp_err *err);

#endif
