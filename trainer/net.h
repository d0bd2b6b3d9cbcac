/*
 * trainer/net.h - the part of the network that a rank computes: views of its parameters as layers.
 * A rank's share of heads, features and vocabulary is what the layout says its boxes are.
 */
#ifndef TRAINER_NET_H
#define TRAINER_NET_H

#include <stdbool.h>
#include <stdint.h>

#include "core/arena.h"
#include "layout/model.h"
#include "trainer/linear_tp.h"
#include "trainer/parallel.h"
#include "trainer/params.h"

struct norm {
    const float *weight; /* f32 in bf16 too: the master */
    float *grad;
};

struct layer {
    struct norm attn_norm, mlp_norm;
    struct linear qkv, out; /* column, row */
    struct linear gate_up, down;
};

struct net {
    const struct model *model;
    enum dtype dtype;
    struct comm *tp;
    int64_t seq;
    int64_t heads, kv_heads, ffn; /* of this rank */
    int64_t q_width, kv_width, qkv_width;
    int64_t vocab_first, vocab; /* this rank's rows of the embedding and the head; may be 0 */
    int n_layers;               /* of this rank's stage */
    struct layer *layers;
    const void *embedding;
    float *embedding_grad;
    struct norm final_norm;
    struct linear head; /* its weight is the embedding when tied */
    float *rope;        /* kernels/rope.h's table for seq positions */
};

/* Count heads, features and rows from the boxes of `p`. */
tp_status net_init(struct net *n, const struct model *m, const struct layout *l,
                   const struct params *p, int64_t seq, struct arena *arena, struct tp_err *err);

void net_take(struct net *n, struct span *own);

/* Point the layers at parameters that have memory, and fill the rotary table. */
tp_status net_bind(struct net *n, const struct layout *l, const struct params *p,
                   const struct parallel *par, struct tp_err *err);

#endif
