/*
 * layout/same_bits.h - what --same-bits N asks of a model, a mesh and a batch, and how it cuts the
 * two.
 *
 * A rank plays the N / tp tensor shards of a run whose tensor degree is N, and all sums go along
 * one binary tree: over shards, blocks of rows, leaves of microbatches, replicas. So what the tree
 * joins has to be there at every mesh. trainer/same_bits/same_bits.h has the sums.
 */
#ifndef LAYOUT_SAME_BITS_H
#define LAYOUT_SAME_BITS_H

#include <stdint.h>

#include "layout/layout.h"
#include "layout/workload.h"

enum { SAME_BITS_SHARDS_MAX = 256 };

/* Parts of workload_check_run, workload_check_mesh and workload_check_micro; w->same_bits is set.
 */
tp_status same_bits_check_run(const struct workload *w, const struct model *m, struct tp_err *err);
tp_status same_bits_check_mesh(const struct workload *w, const struct spec *s, struct tp_err *err);
tp_status same_bits_check_micro(const struct workload *w, const struct spec *s, struct tp_err *err);

/* Cut the vocabulary at every layout where some of N ranks' parts end. */
void same_bits_cut_vocabulary(struct tensor *tensors, int n, int same_bits);

/* Microbatches of a leaf, which are added one after the other: the batch's odd factor. 1 without
 * same_bits. */
int64_t same_bits_chunk_microbatches(const struct workload *w);

/* log2 of the leaves that a dp rank has in a step; 0 without same_bits. */
int same_bits_tree_levels(const struct workload *w, const struct spec *s);

#endif
