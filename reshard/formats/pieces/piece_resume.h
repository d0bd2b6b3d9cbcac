/*
 * reshard/formats/pieces/piece_resume.h - how a target of pieces continues what an interrupted run
 * wrote: inside reshard/formats/pieces/ only.
 */
#ifndef RESHARD_FORMATS_PIECES_PIECE_RESUME_H
#define RESHARD_FORMATS_PIECES_PIECE_RESUME_H

#include "reshard/formats/pieces/piece_target_state.h"

/* The functions of its endpoint. */
extern const struct reshard_resumable piece_resumable;
bool piece_resume_suspects(const void *ctx, int extent, const struct box *run);
tp_status piece_resume_read(void *ctx, int extent, const struct box *run, void *buf,
                            struct tp_err *err);

/* As `keep` of reshard/formats/export_format.h. */
tp_status piece_resume_keep(const struct piece_target *t, const char *dir, const char *journal,
                            struct tp_err *err);

#endif
