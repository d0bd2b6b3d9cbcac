/*
 * layout/tensor_parts.h - the parts that tensor parallelism and ZeRO make of one tensor.
 *
 * Tensor parallelism cuts the units of each fused block; ZeRO cuts what tensor parallelism left
 * along its first axis, as PyTorch's FSDP2 does. Every cut of n units into p parts is by one
 * formula: ceil(n / p) units each, the last parts shorter or empty. Pure arithmetic.
 */
#ifndef LAYOUT_TENSOR_PARTS_H
#define LAYOUT_TENSOR_PARTS_H

#include "layout/tensor.h"

/* The different parts of a tensor, each held by `repeat` neighbouring tp ranks. */
struct tensor_parts {
    int64_t units; /* of each fused block */
    int parts, repeat;
};

/* The parts of t on tp ranks; t is cut as its placement says. */
struct tensor_parts tensor_parts_of(const struct tensor *t, int tp);

/* The boxes of part number `part`; none is empty. Returns their number, at most
 * TENSOR_BOXES_MAX. */
int tensor_parts_boxes(const struct tensor *t, const struct tensor_parts *p, int part,
                       struct box *boxes);

/* Keep of n boxes of a part what dp rank `dp_rank` of `dp` owns under ZeRO: a range of the rows.
 * Returns the number of boxes that are left. */
int tensor_parts_shard(const struct tensor *t, int dp, int dp_rank, struct box *boxes, int n);

#endif
