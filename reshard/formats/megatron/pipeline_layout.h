/*
 * reshard/formats/megatron/pipeline_layout.h - Megatron-LM's --pipeline-model-parallel-layout:
 * which layers each pipeline stage has, as a text
 * (megatron/core/transformer/pipeline_parallel_layer_layout.py).
 *
 *     Et*3|(tt|)*29tL    E embedding, t a layer, L loss, | the next stage; x*3 and (...)*3 repeat
 */
#ifndef RESHARD_FORMATS_MEGATRON_PIPELINE_LAYOUT_H
#define RESHARD_FORMATS_MEGATRON_PIPELINE_LAYOUT_H

#include "core/arena.h"
#include "core/err.h"

struct pipeline_layout {
    int *layers; /* of each stage; in the arena */
    int n; /* stages, counted through the ranks of the first chunks, then of the second; 0: there
              is not a layout */
};

/* Read a layout. TP_E_USAGE: Megatron would refuse it, or it has more than E, t and L; the message
 * begins with `path`, which is of the file that has it. */
tp_status pipeline_layout_read(struct pipeline_layout *out, const char *text, const char *path,
                               struct arena *arena, struct tp_err *err);

#endif
