/*
 * reshard/tied_head.h - whether a head that config.json says is tied is a copy of the embedding.
 *
 * Other frameworks may store such a head too. It is left out as a copy, so it must be one:
 * transformers computes with the head of the files where the two differ.
 */
#ifndef RESHARD_TIED_HEAD_H
#define RESHARD_TIED_HEAD_H

#include "core/err.h"
#include "layout/model.h"
#include "reshard/formats/foreign.h"
#include "reshard/unknown_tensors.h"

/* Compare head and embedding of `path`, a folder or its URL, if `m` is tied and both are there in
 * the same group; equal places in the files need no reading. `format` is NULL for safetensors. A
 * head that `ignore` names is left out on purpose and not compared. memory_bytes is the most for
 * tables; 0: no limit. What cannot be opened is not compared: reading the model says why.
 * TP_E_USAGE: they differ. */
tp_status tied_head_check(const char *path, const struct foreign_format *format,
                          const struct model *m, const struct unknown_tensors_ignore *ignore,
                          int64_t memory_bytes, struct tp_err *err);

#endif
