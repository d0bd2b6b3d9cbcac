/*
 * layout/same_bits.h - what --same-bits N requires of a model, a mesh and a batch.
 *
 * Results have the same bits at every layout because each rank emulates N / tp tensor shards of a
 * run with tensor degree N, and because all sums follow one binary tree: over shards, over blocks
 * of rows, over groups of microbatches, over replicas. So every mesh must be able to form the
 * groups of that tree. trainer/same_bits/same_bits.h describes the sums.
 */
#ifndef LAYOUT_SAME_BITS_H
#define LAYOUT_SAME_BITS_H

#include <stdint.h>

#include "layout/model.h"
#include "layout/tensor.h"
#include "layout/workload.h"

enum { SAME_BITS_SHARDS_MAX = 256 };

/* Parts of workload_check_run, workload_check_mesh and workload_check_micro, for
 * w->same_bits > 0. */
tp_status same_bits_check_run(const struct workload *w, const struct model *m, struct tp_err *err);
tp_status same_bits_check_mesh(const struct workload *w, const struct spec *s, struct tp_err *err);
tp_status same_bits_check_micro(const struct workload *w, const struct spec *s, struct tp_err *err);

/* Cut the vocabulary, at every layout, where the parts of N ranks end: set the unit of the
 * placements. */
void same_bits_cut_vocabulary(struct tensor *tensors, int n, int same_bits);

/* Microbatches of a gradient group: their gradients are added one after the other, the groups'
 * pairwise. It is the odd factor of the number of microbatches; 1 without same_bits. */
int64_t same_bits_group_microbatches(const struct workload *w);

/* log2 of the gradient groups that a dp rank has in a step; 0 without same_bits. */
int same_bits_tree_levels(const struct workload *w, const struct spec *s);

#endif
