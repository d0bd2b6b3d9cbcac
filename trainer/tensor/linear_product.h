/*
 * trainer/tensor/linear_product.h - the products of one rank's part of a linear layer; with
 * --same-bits, of each of its shards. Only trainer/tensor/ uses this.
 */
#ifndef TRAINER_TENSOR_LINEAR_PRODUCT_H
#define TRAINER_TENSOR_LINEAR_PRODUCT_H

#include "trainer/tensor/linear.h"

/* What a product reads and writes. A step is the distance from a shard's elements to the next
 * shard's; 0: all shards share them. */
struct linear_operands {
    void *result; /* NULL: the weight's gradient */
    enum dtype result_type;
    const void *dy, *x;
    int64_t result_step, dy_step, x_step;
    int64_t rows;
    bool add;
    bool with_bias;              /* of an output */
    enum gemm_epilogue epilogue; /* result_type is bf16, and the layer has one part */
    void *gelu_input;            /* as kernels/gemm.h says */
};

/* result = y[rows, out] = x[rows, in] W^T, with the layer's bias where the layer and `o` have it */
void linear_output(const struct linear *l, const struct linear_operands *o);

/* result = dx[rows, in] = dy[rows, out] W */
void linear_input_gradient(const struct linear *l, const struct linear_operands *o);

/* dW[out, in] (+)= dy^T x, or dW[in, out] (+)= x^T dy */
void linear_weight_gradient(const struct linear *l, const struct linear_operands *o);

/* Where shards write the terms of the sum `out`, and the sum of its n elements. Several shards have
 * an f32 sum. */
void *linear_parts_for(const struct linear *l, void *out);
void linear_add_parts(const struct linear *l, void *out, int64_t n);

#endif
