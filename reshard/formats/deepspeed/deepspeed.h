/*
 * reshard/formats/deepspeed/deepspeed.h - DeepSpeed's checkpoints: ZeRO-1, ZeRO-2, ZeRO-3 and
 * Universal.
 *
 *     latest, global_step100/mp_rank_00_model_states.pt                  weights (ZeRO-1, ZeRO-2)
 *                           /zero_pp_rank_D_mp_rank_00_model_states.pt   shapes only (ZeRO-3)
 *                           /[bf16_]zero_pp_rank_D_mp_rank_00_optim_states.pt    flat partitions
 *                           /layer_XX-model_YY-model_states.pt           with pipeline stages:
 *                                                                        model_parallel.h
 *     latest_universal, TAG/zero/NAME/{fp32,exp_avg,exp_avg_sq,step}.pt  Universal
 */
#ifndef RESHARD_FORMATS_DEEPSPEED_DEEPSPEED_H
#define RESHARD_FORMATS_DEEPSPEED_DEEPSPEED_H

#include "layout/model.h"
#include "reshard/formats/export_writer.h"
#include "reshard/formats/pieces/piece.h"

bool deepspeed_detect(const char *path);

/* Add everything of the folder to s. m NULL: names of modules stay as they are
 * (reshard/formats/pieces/module_piece.h). */
tp_status deepspeed_read(struct piece_source *s, const struct model *m, struct tp_err *err);

/* A config.json from the arguments of Megatron-DeepSpeed: a row of reshard/formats/foreign.h. */
tp_status deepspeed_config(const char **text, const char **note, struct piece_source *s,
                           struct tp_err *err);

/* Write a Universal checkpoint: a row of reshard/formats/export_format.h. Each parameter has a
 * folder, whatever the layout. TP_E_USAGE: there are no moments. */
tp_status deepspeed_export_create(struct export_writer *w, const struct export_contents *q,
                                  struct tp_err *err);

#endif
