/*
 * reshard/engine/extent_index.h - the extents of a endpoint, found by tensor and place.
 *
 * A tensor's extents are sorted along the axis on which they differ most, with the running maximum
 * of their ends, so that the extents that meet a box lie in one range found by bisection: a few
 * for every cut that layouts make, all of them in the worst case.
 */
#ifndef RESHARD_ENGINE_EXTENT_INDEX_H
#define RESHARD_ENGINE_EXTENT_INDEX_H

#include "reshard/engine/transfer.h"

struct extent_index;

/* Index a endpoint's extents; empty ones are left out. The endpoint's extents are borrowed.
 * TP_E_INTERNAL: a extent names no tensor, or does not fit into its tensor (named). */
tp_status extent_index_make(struct extent_index **out, const struct reshard_endpoint *endpoint,
                            const struct reshard_tensor *tensors, int n_tensors,
                            struct tp_err *err);
void extent_index_free(struct extent_index *x);

/* Number of extents of a tensor; they have positions 0 .. n - 1. */
int extent_index_count(const struct extent_index *x, int tensor);

/* The number in the endpoint of the extent at a position. */
int extent_index_number(const struct extent_index *x, int tensor, int position);

/* Box of the extent at a position. Borrowed. */
const struct box *extent_index_box(const struct extent_index *x, int tensor, int position);

/* Positions of the extents that meet b, ascending. positions has room for all of the tensor's, or
 * is NULL. Returns how many. */
int extent_index_meet(const struct extent_index *x, int tensor, const struct box *b,
                      int *positions);

/* Whether two extents of a tensor have an element in common; then *a, *b are their positions. */
bool extent_index_overlap(const struct extent_index *x, int tensor, int *a, int *b);

#endif
