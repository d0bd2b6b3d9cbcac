/*
 * reshard/ruled_tensors.h - the tensors of a source whose model has no table in
 * layout/family/, cut by the rules of a file (layout/cut_rules.h). Inside reshard/ only.
 */
#ifndef RESHARD_RULED_TENSORS_H
#define RESHARD_RULED_TENSORS_H

#include "core/arena.h"
#include "layout/tensor.h"
#include "reshard/formats/pieces/piece.h"
#include "reshard/formats/safetensors/safetensors.h"

struct ruled_tensors {
    int n, layers;
    struct tensor *list; /* group "param"; the dtypes are those of the files */
};

/* The tensors of s, in the arena. TP_E_USAGE: the rules cannot be read, do not have each tensor of
 * s once, or do not fit one. */
tp_status ruled_tensors_of_safetensors(struct ruled_tensors *out,
                                       const struct safetensors_source *s, const char *rules,
                                       struct arena *arena, struct tp_err *err);

/* The same for its weights, or masters where it has only these. TP_E_CORRUPT: it has none. */
tp_status ruled_tensors_of_pieces(struct ruled_tensors *out, const struct piece_source *s,
                                  const char *rules, struct arena *arena, struct tp_err *err);

#endif
