/*
 * reshard/formats/hf_config.h - a model's config.json as transformers reads it.
 */
#ifndef RESHARD_FORMATS_HF_CONFIG_H
#define RESHARD_FORMATS_HF_CONFIG_H

#include "core/arena.h"
#include "core/err.h"
#include "layout/dtype.h"
#include "layout/model.h"

/* The config.json of a model whose weights are stored as `dtype`: the model's own, with the members
 * of both transformers 4 (torch_dtype, rope_theta) and 5 (dtype, rope_parameters); the rotary
 * embedding stays as it was where the family says so. *text is malloc'ed. */
tp_status hf_config_make(char **text, const struct model *m, enum dtype dtype, struct tp_err *err);

/* Remove a member of a model's own config.json. The new text is in the arena. TP_E_CORRUPT: it is
 * not a JSON object. */
tp_status hf_config_remove(struct model *m, const char *key, struct arena *arena,
                           struct tp_err *err);

#endif
