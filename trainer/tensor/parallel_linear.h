/*
 * trainer/tensor/parallel_linear.h - the two linear layers of tensor parallelism (Shoeybi et al.
 * 2019) and where their collectives are. Y = X W^T, W[out, in] as Hugging Face stores it, this
 * rank's part dense.
 *
 * A column layer's W is cut along `out`: X is the same on every rank, Y is this rank's part of the
 * columns. Forward sends nothing; backward sums the parts of dX over the ranks.
 *
 * A row layer's W is cut along `in`: X is this rank's part of the columns, Y needs the sum over the
 * ranks. Forward sums; backward sends nothing.
 *
 * So a column layer whose output feeds a row layer, with only elementwise work between them, costs
 * one all-reduce forward and one backward for the pair.
 *
 * Sequence parallelism (Korthikanti et al. 2022) keeps what is between the pairs cut along the
 * rows: an all-gather before the column layer and a reduce-scatter after the row layer send what
 * the all-reduce sent. Of the gathered X only this rank's rows are kept, so backward gathers it
 * again. `rows` is always the number of all rows; what is cut has rows / ranks of them.
 *
 * With --same-bits a rank has several shards of the layer and does for each what a rank of its own
 * would: y and dy of a column layer, x and dx of a row layer are [shards][rows][width of a shard].
 * Each shard's product is one thread's, and what the shards give to a sum is added along the tree
 * that the ranks' sums follow (kernels/cpu/tree_reduce.h).
 */
#ifndef TRAINER_TENSOR_PARALLEL_LINEAR_H
#define TRAINER_TENSOR_PARALLEL_LINEAR_H

#include <stdbool.h>
#include <stdint.h>

#include "comm/collective.h"
#include "kernels/ops.h"
#include "layout/dtype.h"

struct linear {
    const struct kernel_queue *k; /* that computes */
    const void *weight;           /* [out][in], or where in_out: [parts][in][out / parts]; `type` */
    float *grad;                  /* the same shape, f32 */
    int64_t out, in;              /* of this rank's part, or of a shard of it */
    int shards;                   /* 0: the rank's part is one, and its products are all threads' */
    int64_t stride;               /* elements of weight and grad from one shard to the next */
    int64_t all_out; /* outputs of all shards: the last ones of the head may be short */
    int64_t bias_stride;
    float *sums;       /* with shards: [shards][rows][whole side], what is to be added up */
    bool in_out;       /* stored with inputs first, as GPT-2 does */
    int parts;         /* matrices whose outputs lie side by side in y; 0: one. More: in_out */
    const float *bias; /* [out] f32, or NULL; adding it is the caller's, for a row layer's goes on
                        * top of the sum over ranks */
    float *bias_grad;
    enum dtype type; /* of weight, x and dy: f32 or bf16; y and dx are f32 */
    float *whole;    /* sequence parallelism: [rows][in or out] for collectives; NULL: off */
    struct comm *tp; /* NULL: not cut, every rank computes all of it */
};

/* y += bias; nothing without one. Of a column layer. */
void linear_bias_add(const struct linear *l, float *y, int64_t rows);

/* The bias' gradient, from all rows of dy, `type`. */
void linear_bias_backward(const struct linear *l, const void *dy, int64_t rows);

void linear_column_forward(const struct linear *l, float *y, const void *x, int64_t rows);

/* dx is memory for collectives. add: gradients of the weight add to what is there (a further
 * microbatch, or a tied head before the embedding); else they replace it. */
void linear_column_backward(const struct linear *l, float *dx, const void *dy, const void *x,
                            int64_t rows, bool add);

/* y is memory for collectives. */
void linear_row_forward(const struct linear *l, float *y, const void *x, int64_t rows);

void linear_row_backward(const struct linear *l, float *dx, const void *dy, const void *x,
                         int64_t rows, bool add);

#endif
