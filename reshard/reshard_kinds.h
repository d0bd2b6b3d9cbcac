/*
 * reshard/reshard_kinds.h - the tensors of a transfer, grouped for people to read.
 */
#ifndef RESHARD_RESHARD_KINDS_H
#define RESHARD_RESHARD_KINDS_H

#include "core/arena.h"
#include "layout/layout.h"
#include "reshard/engine/transfer.h"

/* Tensors that differ only in layer number and group, and to which the same happens. */
struct reshard_kind {
    const char *name;   /* numbers between dots are '#': "model.layers.#.mlp.up_proj.weight" */
    const char *groups; /* "param+exp_avg" */
    const struct tensor *tensor; /* one of them */
    struct transfer_tensor_stats stats;
    int count;
    int64_t bytes; /* written */
};

/* The kinds of the tensors of a plan, in the order in which they first occur. `layout` is the
 * target's; stats[i] is what happens to its tensor i. Everything is in the arena. */
tp_status reshard_kinds_list(const struct reshard_kind **kinds, int *n, const struct layout *layout,
                             const struct transfer_tensor_stats *stats, struct arena *arena,
                             struct tp_err *err);

#endif
