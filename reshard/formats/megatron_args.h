/*
 * reshard/formats/megatron_args.h - the arguments of the Megatron-LM program that saved: whether
 * its model is the one of config.json.
 *
 * Shapes alone do not tell: with other numbers of heads, the rows of query, key and value would be
 * taken apart at the wrong places.
 */
#ifndef RESHARD_FORMATS_MEGATRON_ARGS_H
#define RESHARD_FORMATS_MEGATRON_ARGS_H

#include "layout/model.h"
#include "torch/pickle.h"

/* Compare `args` of the file at `path` with m. TP_E_USAGE: a size differs, or the program used an
 * option that changes what tensors mean. Arguments that are absent are not compared. */
tp_status megatron_args_check(const struct pickle_value *args, const struct model *m,
                              const char *path, struct tp_err *err);

#endif
