/*
 * trainer/model/network.h - the part of the network that a rank computes: views of its parameters
 * as layers. A rank's share of heads, features and vocabulary is what the layout says its boxes
 * are.
 */
#ifndef TRAINER_MODEL_NETWORK_H
#define TRAINER_MODEL_NETWORK_H

#include <stdbool.h>
#include <stdint.h>

#include "core/arena.h"
#include "kernels/ops.h"
#include "layout/model.h"
#include "layout/recompute.h"
#include "trainer/context/ring_attention.h"
#include "trainer/context/zigzag.h"
#include "trainer/data_parallel/params.h"
#include "trainer/process_groups.h"
#include "trainer/sizing/activations.h"
#include "trainer/tensor/parallel_linear.h"

struct network_norm {
    const float *weight; /* f32 in bf16 too: the master */
    float *grad;
    const float *bias; /* of a layer norm; NULL: root mean square */
    float *bias_grad;
};

struct network_layer {
    struct network_norm attn_norm, mlp_norm;
    struct linear qkv, out;      /* column, row */
    struct linear up, down;      /* column (with Llama gate and up side by side), row */
    struct pairwise_range grads; /* of all its parameters, in whole spans */
    int unit; /* zero3: what its weights are gathered with (trainer/data_parallel/fsdp_units.h); or
                 -1 */
};

/* A run of layers that microbatches pass through at once: all of a rank's, or with interleaved
 * pipelines one of several. */
struct network_vstage {
    int first, n; /* in net.layers */
};

/* Rows of the embedding's or the head's matrix that a rank has. A plan may cut one and not the
 * other. */
struct network_vocab_rows {
    int64_t first, each; /* of a shard; each may be 0 */
    int64_t all;         /* of all shards of this rank; the last ones may be short */
};

struct network {
    const struct model *model;
    enum dtype dtype;
    struct kernel_queue k; /* that computes */
    struct comm *tp;
    struct ring_group ring; /* over cp */
    struct zigzag tokens;   /* of a sequence that this rank has */
    int64_t seq;            /* how many: of the whole sequence, or under cp a part */
    int split;              /* ranks that share the rows of the stream: tp under sp, else 1 */
    float *whole;           /* under sp: [rows][h] for collectives */
    enum recompute recompute;
    bool same_bits;        /* every sum is taken one way; see trainer/same_bits/same_bits.h */
    int shards, n_virtual; /* tensor shards that this rank plays, and of all: 1 and tp without */
    float *sums;           /* of several: [shards][rows][h], what is to be added up */
    int64_t heads, kv_heads, ffn; /* of a shard: what this rank has if it plays one */
    int64_t q_width, kv_width, qkv_width;
    int64_t up_width;                /* 2 ffn or ffn */
    struct network_vocab_rows table; /* of the embedding, on the first stage */
    struct network_vocab_rows logit; /* of the head, on the last */
    bool is_first, is_last;          /* has the embedding; has the head */
    bool is_sharded;                 /* zero3: weights are there while they are needed */
    int first_unit, last_unit;       /* of the embedding, of the head; -1: always there */
    int n_layers, n_vstages;         /* of this rank's stages */
    struct network_layer *layers;
    int *layer_numbers; /* [n_layers] in the model */
    struct network_vstage *vstages;
    const void *embedding;
    float *embedding_grad;
    int64_t embedding_stride;  /* elements to the next shard's */
    struct comm *embedding_tp; /* NULL: every rank has all of it */
    const float *positions;    /* [max_positions][h] f32, learned; NULL: rotary */
    float *positions_grad;
    struct network_norm final_norm;
    struct linear head; /* its weight is the embedding when tied */
    struct pairwise_range before,
        after[2]; /* gradients of what comes before the layers, and after them */
    const struct pairwise_sum *pairwise; /* borrowed */
    float *rope;                         /* kernels/rope.h's table for the rank's seq positions */
};

/* Find this rank's layers and tokens, and the rows of its vocabulary from the boxes of `p`. d: the
 * dimensions of its stage. */
tp_status network_init(struct network *n, const struct model *m, const struct layout *l,
                       const struct params *p, const struct rank_dims *d, int rank,
                       struct arena *arena, struct tp_err *err);

/* Rows that a shard has; *first is the first of them. */
int64_t network_vocab_rows_of(const struct network_vocab_rows *v, int shard, int64_t *first);

/* Point the layers at parameters and scratch that have memory, and fill the rotary table; n->k is
 * set. */
tp_status network_bind(struct network *n, const struct layout *l, const struct params *p,
                       const struct activations_scratch *w, const struct process_groups *par,
                       struct tp_err *err);

#endif
