/*
 * trainer/tensor/linear.h - what one rank has of a linear layer: Y = X W^T, W[out, in] as Hugging
 * Face stores it.
 *
 * With --same-bits a rank emulates several tensor-parallel ranks, and has one shard of the layer
 * for each of them.
 */
#ifndef TRAINER_TENSOR_LINEAR_H
#define TRAINER_TENSOR_LINEAR_H

#include <stdbool.h>
#include <stdint.h>

#include "comm/collective.h"
#include "kernels/ops.h"
#include "layout/dtype.h"

struct linear {
    const struct kernel_queue *k; /* where the layer computes */
    const void *weight;           /* [out][in], or with in_out [parts][in][out / parts]; `type` */
    float *grad;                  /* the same shape, f32 */
    int64_t out, in;              /* of this rank's part, or of one shard of it */
    int shards;                   /* 0: the part is not divided, and all threads share a product */
    int64_t stride;               /* elements of weight and grad from one shard to the next */
    int64_t all_out; /* outputs of all shards: the last shards of the head may be short */
    int64_t bias_stride;
    float *sums;       /* with shards: [shards][rows][width], the terms of a sum over shards */
    bool in_out;       /* stored with inputs first, as in GPT-2 */
    int parts;         /* matrices whose outputs are side by side in y; 0: one. More need in_out */
    const float *bias; /* [out] f32, or NULL. The caller adds the bias of a row layer, after the sum
                        * over ranks */
    const uint16_t *rounded_bias; /* the same in bf16, if the parameters have it; else NULL */
    float *bias_grad;
    float divisor; /* of y: the head's; 0: 1. The gradient that backward passes read is that of the
                    * product before it is divided */
    bool bias_by_norm; /* of a row layer: the backward pass of the norm above sums bias_grad */
    enum dtype type;   /* of weight, x and dy: f32 or bf16 */
    enum dtype inner;  /* of a column layer's y and of a row layer's dx: f32, or type on a device
                          that keeps_bf16 (kernels/ops.h) */
    enum dtype outer;  /* the same of a column layer's dx and of a row layer's y, which ranks add */
    float *whole;      /* sequence parallelism: [rows][in or out] for collectives; NULL: off */
    struct comm *tp;   /* NULL: not cut, every rank computes all of it */
};

#endif
