/*
 * reshard/formats/megatron/megatron_modules.h - the parameters that a rank of Megatron-LM has, in
 * the order of its modules, from the model and the sizes of the job alone. Formats whose buffers
 * have no names need it.
 */
#ifndef RESHARD_FORMATS_MEGATRON_MEGATRON_MODULES_H
#define RESHARD_FORMATS_MEGATRON_MEGATRON_MODULES_H

#include "reshard/formats/megatron/megatron_rank.h"

/* Set r->params of rank (r->tp_rank, r->pp_rank). r->map.padded_vocab must be known. */
tp_status megatron_modules_list(struct megatron_rank *r, struct tp_err *err);

#endif
