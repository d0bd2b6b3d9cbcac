/*
 * reshard/engine/extent_index.h - finds the extents of an endpoint that overlap a box.
 *
 * The extents of a tensor are sorted along the axis on which their offsets differ most, with the
 * running maximum of their ends. So the extents that overlap a box lie in one range, found by
 * binary search: a few for every cut that layouts make, all of them in the worst case.
 */
#ifndef RESHARD_ENGINE_EXTENT_INDEX_H
#define RESHARD_ENGINE_EXTENT_INDEX_H

#include "reshard/engine/endpoint.h"

struct extent_index;

/* Index the extents of an endpoint, which are borrowed; empty ones are left out.
 * TP_E_INTERNAL: an extent has no tensor, or does not fit into its tensor. */
tp_status extent_index_make(struct extent_index **out, const struct reshard_endpoint *endpoint,
                            const struct reshard_tensor *tensors, int n_tensors,
                            struct tp_err *err);

/* Tensors begin .. end - 1 of n. */
struct extent_index_tensors {
    const struct reshard_tensor *tensors;
    int n, begin, end;
};

/* The same for some of the tensors; the others have no extents in this index, and take no
 * memory. */
tp_status extent_index_make_of(struct extent_index **out, const struct reshard_endpoint *endpoint,
                               const struct extent_index_tensors *which, struct tp_err *err);
void extent_index_free(struct extent_index *x);

/* Number of extents of a tensor. They have positions 0 .. n - 1. */
int extent_index_count(const struct extent_index *x, int tensor);

/* The endpoint's number of the extent at a position. */
int extent_index_number(const struct extent_index *x, int tensor, int position);

/* Box of the extent at a position. Borrowed. */
const struct box *extent_index_box(const struct extent_index *x, int tensor, int position);

/* Positions of the extents that overlap b, ascending; returns how many. positions is NULL or has
 * room for all extents of the tensor. */
int extent_index_find(const struct extent_index *x, int tensor, const struct box *b,
                      int *positions);

/* Whether two extents of a tensor share an element; then *a and *b are their positions. */
bool extent_index_overlap(const struct extent_index *x, int tensor, int *a, int *b);

#endif
