/*
 * reshard/formats/megatron/megatron_version.h - in which form a version of Megatron-core loads an
 * optimizer from torch_dist:
 *
 *     0.8 to 0.10    the distributed one as fully_sharded_model_space (torch_dist_cut.h); a vector
 *                    outside of layers is stored as it is
 *     0.11 to 0.14   the same, and such a vector is cut too
 *     from 0.15 on   as fully_reshardable
 *
 * With expert parallelism there are two optimizers, of layers and of experts. Before 0.14 their
 * names begin with "chained_0." and "chained_1.".
 */
#ifndef RESHARD_FORMATS_MEGATRON_MEGATRON_VERSION_H
#define RESHARD_FORMATS_MEGATRON_MEGATRON_VERSION_H

#include <stdbool.h>

#include "core/err.h"

struct megatron_version {
    bool model_space;   /* fully_sharded_model_space */
    bool cuts_vectors;  /* there: also vectors outside of layers */
    bool chained_names; /* names of several optimizers have numbers */
};

/* The form of a version such as "0.12.3" or "0.12"; NULL: of the newest. TP_E_USAGE: it is no
 * version, or an older one than 0.8. */
tp_status megatron_version_find(struct megatron_version *out, const char *text, struct tp_err *err);

#endif
