/*
 * reshard/formats/torch/dcp.h - a checkpoint of torch.distributed.checkpoint (DCP): what FSDP2,
 * DTensor and torchtitan programs save.
 *
 * `.metadata` is a pickle that says, for each tensor, which boxes of it are stored where. Each box
 * is a file of torch.save inside a larger file, `__RANK_N.distcp`.
 */
#ifndef RESHARD_FORMATS_TORCH_DCP_H
#define RESHARD_FORMATS_TORCH_DCP_H

#include "layout/model.h"
#include "reshard/formats/export_writer.h"
#include "reshard/formats/pieces/piece.h"
#include "torch/torch_file.h"

bool dcp_detect(const char *path);

/* Add everything of the folder to s. "optim.state.NAME.exp_avg" is tensor NAME of group exp_avg;
 * the prefix that all weights have in addition to the names in the optimizer is left out. A model
 * is not needed. */
tp_status dcp_read(struct piece_source *s, const struct model *m, struct tp_err *err);

/* The same of a checkpoint that lies in n folders, each with a .metadata, whose weights have this
 * prefix: "model.". */
tp_status dcp_read_folders(struct piece_source *s, const struct model *m, const char *const *dirs,
                           int n, const char *prefix, struct tp_err *err);

/* The same of torchtitan: a model with the names and the order of rows of torchtitan_map.h, and
 * "optimizer.state.NAME.exp_avg". TP_E_USAGE: there is no model, or it is of another family. */
bool torchtitan_detect(const char *path);
tp_status torchtitan_read(struct piece_source *s, const struct model *m, struct tp_err *err);

/* Whether torchtitan_read and torchtitan_export_create know a model. `path` is for the message. */
tp_status torchtitan_check_model(const struct model *m, const char *path, struct tp_err *err);

/* Write one: a row of reshard/formats/export_format.h. Each rank of the layout that stores anything
 * has a file, `__RANK_0.distcp`. Names are those of {"model": ..., "optim": ...} with the results
 * of torch.distributed.checkpoint.state_dict.get_state_dict. */
tp_status dcp_export_create(struct export_writer *w, const struct export_contents *q,
                            struct tp_err *err);

/* The same as Accelerate saves it (reshard/formats/torch/accelerate.h). */
tp_status accelerate_export_create(struct export_writer *w, const struct export_contents *q,
                                   struct tp_err *err);

/* The same as torchtitan saves it, by all names of its releases. */
tp_status torchtitan_export_create(struct export_writer *w, const struct export_contents *q,
                                   struct tp_err *err);

#endif
