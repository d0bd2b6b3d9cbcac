/*
 * reshard/formats/pieces/compiled_name.h - names of parameters of modules that torch.compile has
 * wrapped: inside reshard/formats/ only.
 *
 * The wrapper (OptimizedModule) has the module as its only child, _orig_mod. So state_dict() has
 * "_orig_mod.lm_head.weight", and "model.layers.3._orig_mod.mlp.up_proj.weight" where each layer is
 * compiled.
 */
#ifndef RESHARD_FORMATS_PIECES_COMPILED_NAME_H
#define RESHARD_FORMATS_PIECES_COMPILED_NAME_H

#include <stdbool.h>

#include "core/arena.h"

/* Whether a name may have such parts. */
bool compiled_name_is(const char *name);

/* A copy of the name without the parts "_orig_mod", which the module itself does not have. NULL:
 * memory is out. */
const char *compiled_name_plain(struct arena *arena, const char *name);

#endif
