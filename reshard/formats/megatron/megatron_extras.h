/*
 * reshard/formats/megatron/megatron_extras.h - what Megatron-LM saves beside model and optimizer
 * and that means the same at every layout: most arguments (the consumed samples are among them),
 * the state of the learning rate's schedule, counters. A target in one of Megatron's formats gets
 * them.
 *
 * Only plain values are taken over (torch/pickle_copy.h).
 */
#ifndef RESHARD_FORMATS_MEGATRON_MEGATRON_EXTRAS_H
#define RESHARD_FORMATS_MEGATRON_MEGATRON_EXTRAS_H

#include "reshard/formats/pieces/piece.h"
#include "torch/pickle.h"
#include "torch/pickle_copy.h"

struct bridge_files_counters;

/* Note the entries of a root dict, model_optim_rng.pt's or common.pt's, as left behind or as
 * extras; and tell s the modules, and the options of AdamW and its step, if they have them, or that
 * the state is of another optimizer (piece_source_refuse_state). NULL or counters that
 * Megatron-Bridge stores instead of arguments. */
tp_status megatron_extras_read(struct piece_source *s, const struct pickle_value *root,
                               const struct bridge_files_counters *counters, struct tp_err *err);

/* Tell s the options of AdamW, and its step, of a list of param_groups; *found: whether it has
 * them. */
tp_status megatron_extras_adamw(bool *found, struct piece_source *s,
                                const struct pickle_value *groups, struct tp_err *err);

/* The state of AdamW in a root dict: of several optimizers, the first one's; without the wrapper
 * around the masters. */
const struct pickle_value *megatron_extras_optimizer(const struct pickle_value *root);

/* Whether `from` has an entry of the root, `key`, that is written. `from` NULL: no. */
bool megatron_extras_has(const struct piece_source *from, const char *key);

/* Push keys and values: the arguments, or all others. `from` is the source; NULL: nothing. */
void megatron_extras_write_args(struct pickle_writer *w, const struct piece_source *from);
void megatron_extras_write_others(struct pickle_writer *w, const struct piece_source *from);

/* The arguments again, as a dict in the arena, which has those that are taken over. Without any it
 * is empty. */
tp_status megatron_extras_args(const struct pickle_value **out, const struct piece_source *from,
                               struct arena *arena, struct tp_err *err);

#endif
