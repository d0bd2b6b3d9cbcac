/*
 * trainer/tensor/parallel_linear.h - the two linear layers of tensor parallelism (Shoeybi et al.
 * 2019), and where their collectives are. Y = X W^T (trainer/tensor/linear.h).
 *
 * A column layer's W is cut along `out`: X is the same on every rank, and Y is this rank's part of
 * the columns. Forward sends nothing; backward sums the parts of dX over the ranks.
 *
 * A row layer's W is cut along `in`: X is this rank's part of the columns, and Y needs the sum over
 * the ranks. Forward sums; backward sends nothing.
 *
 * So a column layer whose output feeds a row layer, with only elementwise work between them, costs
 * one all-reduce forward and one backward for the pair.
 *
 * Sequence parallelism (Korthikanti et al. 2022) cuts the activations between these pairs along the
 * rows: an all-gather before the column layer and a reduce-scatter after the row layer send as much
 * as the all-reduce. Only this rank's rows of the gathered X are kept, so backward gathers it
 * again. `rows` is always the number of all rows; a tensor that is cut has rows / ranks rows.
 *
 * With --same-bits a rank has several shards of the layer and does for each of them what a rank
 * would do: y and dy of a column layer, x and dx of a row layer are [shards][rows][width of a
 * shard]. One thread computes each shard's product, and the terms of the shards are added along the
 * tree that collectives follow (kernels/cpu/tree_reduce.h).
 */
#ifndef TRAINER_TENSOR_PARALLEL_LINEAR_H
#define TRAINER_TENSOR_PARALLEL_LINEAR_H

#include "trainer/tensor/linear.h"

/* All rows of x, [rows][width] of the layer's type: x itself, or with sp a copy from all ranks in
 * l->whole. */
const void *linear_gather(const struct linear *l, const void *x, int64_t rows, int64_t width);

/* Where to put a rank's part of a sum over ranks that y[rows][width], l->outer, is to get, and that
 * sum. */
void *linear_sum_place(const struct linear *l, void *y);
void linear_sum(const struct linear *l, void *y, int64_t rows, int64_t width);

/* The products of a layer that is not cut, with all rows: y = x W^T, dx = dy W (l->outer), and W's
 * gradient. Nothing is sent. */
void linear_uncut_forward(const struct linear *l, float *y, const void *x, int64_t rows);
void linear_uncut_input_gradient(const struct linear *l, void *dx, const void *dy, int64_t rows);
void linear_uncut_weight_gradient(const struct linear *l, const void *dy, const void *x,
                                  int64_t rows, bool add);

/* The bias' gradient of a column layer, from all rows of dy, `type`. */
void linear_bias_backward(const struct linear *l, const void *dy, int64_t rows);

/* y, l->inner, with the bias, if the layer has one. */
void linear_column_forward(const struct linear *l, void *y, const void *x, int64_t rows);

/* dx, l->outer, is memory for collectives. add: add the gradients of the weight to what is there (a
 * later microbatch, or an embedding after its tied head); else replace it. */
void linear_column_backward(const struct linear *l, void *dx, const void *dy, const void *x,
                            int64_t rows, bool add);

/* y, l->outer, is memory for collectives. */
void linear_row_forward(const struct linear *l, void *y, const void *x, int64_t rows);

/* dx: l->inner. */
void linear_row_backward(const struct linear *l, void *dx, const void *dy, const void *x,
                         int64_t rows, bool add);

/* The pair around GELU, where l->inner is bf16: the column layer's y = gelu(u), with u, the product
 * and its bias, for the backward pass; the row layer's du, the gradient of u, from which x was
 * made. y, u and du are bf16 and no shards are emulated. */
void linear_column_gelu_forward(const struct linear *l, void *y, void *u, const void *x,
                                int64_t rows);
void linear_row_gelu_backward(const struct linear *l, void *du, void *u, const void *dy,
                              const void *x, int64_t rows, bool add);

#endif
