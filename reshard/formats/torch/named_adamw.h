/*
 * reshard/formats/torch/named_adamw.h - the whole state of an optimizer in one file of torch.save,
 * by the names of parameters, as FSDP.optim_state_dict and get_optimizer_state_dict return it.
 * Inside reshard/formats/torch/ only.
 */
#ifndef RESHARD_FORMATS_TORCH_NAMED_ADAMW_H
#define RESHARD_FORMATS_TORCH_NAMED_ADAMW_H

#include "reshard/formats/pieces/piece.h"

/* Add the state in file number `file` of s, of a model, which may be NULL. A number in place of a
 * name becomes its digits. */
tp_status named_adamw_read(struct piece_source *s, const struct model *m, int file,
                           struct tp_err *err);

#endif
