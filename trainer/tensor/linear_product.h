/*
 * trainer/tensor/linear_product.h - the products of a linear layer on what one rank has of it: on
 * each of its shards, where it has several. Inside trainer/tensor/parallel_linear only.
 */
#ifndef TRAINER_TENSOR_LINEAR_PRODUCT_H
#define TRAINER_TENSOR_LINEAR_PRODUCT_H

#include "trainer/tensor/parallel_linear.h"

/* What a product reads and writes, and how far on the next shard's is: 0 where all share it. */
struct linear_operands {
    float *to; /* NULL: the weight's gradient */
    int64_t to_step;
    const char *dy;
    int64_t dy_step; /* bytes, as the next */
    const char *x;
    int64_t x_step;
    int64_t rows;
    bool add;
};

/* A product of the whole layer or of one shard as a layer of its own. */
typedef tp_status (*linear_product_fn)(const struct linear *l, const struct linear_operands *o,
                                       struct tp_err *err);

/* to = y[rows, out] = x[rows, in] W^T */
tp_status linear_output(const struct linear *l, const struct linear_operands *o,
                        struct tp_err *err);

/* to = dx[rows, in] = dy[rows, out] W */
tp_status linear_input_gradient(const struct linear *l, const struct linear_operands *o,
                                struct tp_err *err);

/* dW[out, in] (+)= dy^T x, or dW[in, out] (+)= x^T dy */
tp_status linear_weight_gradient(const struct linear *l, const struct linear_operands *o,
                                 struct tp_err *err);

/* Every shard's product, by one thread each; with one part that is not a shard, by all. */
tp_status linear_each(linear_product_fn fn, const struct linear *l, const struct linear_operands *o,
                      struct tp_err *err);

/* Where shards put what is to be added up to `out`, and the sum of its n elements. */
float *linear_parts_for(const struct linear *l, float *out);
void linear_add_parts(const struct linear *l, float *out, int64_t n);

#endif
