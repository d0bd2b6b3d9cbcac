/*
 * layout/tensor_kinds.h - the different kinds of tensors that a model or a checkpoint has.
 *
 * The layers of a model are alike, so whether a layout fits depends on one of them. Tensors are of
 * one kind when tensor parallelism cuts them alike: same placement, same length of the cut axis.
 * Checks that try thousands of layouts look at kinds, not at tensors.
 */
#ifndef LAYOUT_TENSOR_KINDS_H
#define LAYOUT_TENSOR_KINDS_H

#include "core/arena.h"
#include "core/err.h"
#include "layout/tensor.h"

struct tensor_kinds {
    int n;
    struct tensor *tensors; /* the first of each kind, in the order of the tensors */
};

/* The kinds of n tensors; tensors that are not cut are left out. Lives in the arena; n log n. */
tp_status tensor_kinds_find(struct tensor_kinds *out, const struct tensor *tensors, int n,
                            struct arena *arena, struct tp_err *err);

#endif
