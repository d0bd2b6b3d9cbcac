/*
 * reshard/region_index.h - the regions of a port, found by tensor and place.
 *
 * A tensor's regions are sorted along the axis on which they differ most, with the running maximum
 * of their ends, so that the regions that meet a box lie in one range found by bisection: a few
 * for every cut that layouts make, all of them in the worst case.
 */
#ifndef RESHARD_REGION_INDEX_H
#define RESHARD_REGION_INDEX_H

#include "reshard/engine.h"

struct region_index;

/* Index a port's regions; empty ones are left out. The port's regions are borrowed.
 * TP_E_INTERNAL: a region names no tensor, or does not fit into its tensor (named). */
tp_status region_index_make(struct region_index **out, const struct reshard_endpoint *port,
                            const struct move_tensor *tensors, int n_tensors, struct tp_err *err);
void region_index_free(struct region_index *x);

/* Number of regions of a tensor; they have positions 0 .. n - 1. */
int region_index_count(const struct region_index *x, int tensor);

/* The number in the port of the region at a position. */
int region_index_region(const struct region_index *x, int tensor, int position);

/* Box of the region at a position. Borrowed. */
const struct box *region_index_box(const struct region_index *x, int tensor, int position);

/* Positions of the regions that meet b, ascending. positions has room for all of the tensor's, or
 * is NULL. Returns how many. */
int region_index_meet(const struct region_index *x, int tensor, const struct box *b,
                      int *positions);

/* Whether two regions of a tensor have an element in common; then *a, *b are their positions. */
bool region_index_overlap(const struct region_index *x, int tensor, int *a, int *b);

#endif
