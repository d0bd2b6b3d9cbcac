/*
 * trainer/tensor/expert_linear.h - the products of a linear layer that every expert has, with the
 * rows of each: Y = X W^T. W of an expert follows that of the expert before it by l->stride.
 * Nothing is sent.
 */
#ifndef TRAINER_TENSOR_EXPERT_LINEAR_H
#define TRAINER_TENSOR_EXPERT_LINEAR_H

#include "trainer/tensor/linear.h"

/* Rows that are sorted by expert: those of expert e are offsets[e] to offsets[e + 1] - 1, in device
 * memory. host_offsets: the same in host memory, if the device's products need it there. */
struct expert_linear_rows {
    const int32_t *offsets, *host_offsets;
    int experts;
    int groups; /* a multiple of experts: after the rows of all experts, more of them follow */
};

/* y, y_type (f32 or l->inner), with ldy elements from one row to the next, gets the outputs of
 * dense x. */
void expert_linear_forward(const struct linear *l, const struct expert_linear_rows *r, void *y,
                           enum dtype y_type, int64_t ldy, const void *x);

/* Dense dx, dx_type (as y_type), gets the gradient of x, or (add) it is added; dy has lddy elements
 * from one row to the next. */
void expert_linear_input_gradient(const struct linear *l, const struct expert_linear_rows *r,
                                  void *dx, enum dtype dx_type, const void *dy, int64_t lddy,
                                  bool add);

/* Of every expert, also of those without rows. add: to the gradients that are there. */
void expert_linear_weight_gradient(const struct linear *l, const struct expert_linear_rows *r,
                                   const void *dy, int64_t lddy, const void *x, bool add);

#endif
