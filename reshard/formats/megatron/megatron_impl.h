/*
 * reshard/formats/megatron/megatron_impl.h - which modules Megatron-LM's layers are made of: its
 * own (--transformer-impl local), or Transformer Engine's.
 *
 * Transformer Engine's linear layers have the norm before them inside, and its grouped layers the
 * matrices of all experts of a rank. So a folder for each rank has other names, and the parameters
 * have another order. torch_dist has the same names for both.
 */
#ifndef RESHARD_FORMATS_MEGATRON_MEGATRON_IMPL_H
#define RESHARD_FORMATS_MEGATRON_MEGATRON_IMPL_H

#include "reshard/formats/export_writer.h"
#include "torch/pickle.h"
#include "torch/pickle_writer.h"

/* What a program's arguments say. GroupedMLP (weight1 and weight2) is unknown, because it is not
 * written. */
struct export_modules megatron_impl_read(const struct pickle_value *args);

/* Correct it by a parameter's name, which proves it. */
void megatron_impl_prove(struct export_modules *out, const char *name);

/* What is written: q's modules, else those of Transformer Engine, which is Megatron-LM's default.
 * TP_E_USAGE: such experts are not written. */
tp_status megatron_impl_choose(struct export_modules *out, const struct export_contents *q,
                               struct tp_err *err);

/* Say which options load what is written. */
void megatron_impl_note(const struct export_modules *modules, const struct export_contents *q);

/* Push them as arguments; what is unknown is not said. */
void megatron_impl_write(struct pickle_writer *w, const struct export_modules *modules);

#endif
