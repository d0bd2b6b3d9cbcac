/*
 * reshard/formats/megatron/master_check.h - whether an optimizer's f32 masters belong to the
 * weights beside them.
 *
 * Megatron-LM's flat buffers have no names. If their parameters were in another order than is
 * believed here, moments would silently go to wrong tensors. But weights are copies of their
 * masters, rounded, so a few elements of each tensor tell.
 */
#ifndef RESHARD_FORMATS_MEGATRON_MASTER_CHECK_H
#define RESHARD_FORMATS_MEGATRON_MASTER_CHECK_H

#include "reshard/formats/pieces/piece.h"

/* Compare some elements of each tensor that has both, after piece_source_finish. TP_E_CORRUPT: most
 * elements of a tensor differ; the message names it. */
tp_status master_check(struct piece_source *s, struct tp_err *err);

#endif
