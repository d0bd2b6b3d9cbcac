/*
 * reshard/formats/torch/dcp_prefix.h - what a program puts in front of the names of its weights:
 * "model." of {"model": model_state}, "app.model." of PyTorch's recipe with AppState. Inside
 * reshard/formats/torch/ only.
 */
#ifndef RESHARD_FORMATS_TORCH_DCP_PREFIX_H
#define RESHARD_FORMATS_TORCH_DCP_PREFIX_H

#include <stdbool.h>

#include "core/arena.h"
#include "core/err.h"

/* Names of weights, and the names that the optimizer has for its parameters. Both may repeat. */
struct dcp_prefix_names {
    const char **weights, **moments; /* sorted by dcp_prefix_find */
    int n_weights, n_moments;
};

/* The prefix; "": none. The optimizer names parameters as their module does, so it is the prefix
 * with which most of its names are those of weights. Without an optimizer, it is what is in front
 * of the names that Hugging Face's models have. Of several it is that of the whole program, or that
 * whose last key is usual for the model (model_key.h), or the shortest. *out lives as long as the
 * arena. TP_E_NOMEM. */
tp_status dcp_prefix_find(const char **out, struct dcp_prefix_names *names, struct arena *arena,
                          struct tp_err *err);

enum { DCP_PREFIX_TEXT = 200 };

/* Whether no other model is beside that with this prefix, which might as well be meant, as
 * "reference." beside "policy."; else `rival` is the prefix of such a one. */
bool dcp_prefix_is_clear(char rival[DCP_PREFIX_TEXT], const struct dcp_prefix_names *names,
                         const char *prefix);

#endif
