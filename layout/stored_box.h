/*
 * layout/stored_box.h - the boxes of a checkpoint: each element of each tensor once, and the rank
 * that writes it.
 */
#ifndef LAYOUT_STORED_BOX_H
#define LAYOUT_STORED_BOX_H

#include "core/arena.h"
#include "core/err.h"
#include "layout/layout.h"

/* What a rank holds of a tensor, or a block of its columns (layout/column_blocks.h). */
struct stored_box {
    int tensor; /* index in layout.tensors */
    int part;   /* 0, 1, ...: number of this box among the tensor's boxes in its rank's file */
    int rank;   /* the writer: one of the ranks that hold the box, chosen to balance bytes */
    struct box box;
};

/* All stored boxes, ordered by rank, then tensor, then part; the same on every rank. *boxes lives
 * in the arena. TP_E_INTERNAL: the boxes of a tensor do not tile it. */
tp_status stored_box_list(struct stored_box **boxes, int *n, const struct layout *l,
                          struct arena *arena, struct tp_err *err);

/* Where the boxes of a rank begin in the list, and how many there are (0: it writes nothing). */
int stored_box_of_rank(int *count, const struct stored_box *boxes, int n, int rank);

/* The bytes that each rank writes, without a list of boxes, which may have millions. bytes_of[rank]
 * of all ranks must be 0. */
tp_status stored_box_rank_bytes(int64_t *bytes_of, const struct layout *l, struct tp_err *err);

#endif
