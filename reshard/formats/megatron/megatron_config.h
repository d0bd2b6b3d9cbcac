/*
 * reshard/formats/megatron/megatron_config.h - a config.json made from the arguments of the
 * program that saved, Megatron-LM or Megatron-DeepSpeed, for checkpoints that have none beside
 * them.
 *
 * Megatron-LM has no families: its arguments say what the layers compute, and this is written as
 * the family of transformers that computes the same.
 */
#ifndef RESHARD_FORMATS_MEGATRON_MEGATRON_CONFIG_H
#define RESHARD_FORMATS_MEGATRON_MEGATRON_CONFIG_H

#include "core/arena.h"
#include "core/err.h"
#include "torch/pickle.h"

/* Make the text of a config.json from `args` of the file at `path`; *note says which family and
 * vocabulary were chosen. Both live in the arena. TP_E_USAGE: an argument is missing, or no family
 * computes what it says; the message names it. */
tp_status megatron_config_make(const char **text, const char **note,
                               const struct pickle_value *args, const char *path,
                               struct arena *arena, struct tp_err *err);

#endif
