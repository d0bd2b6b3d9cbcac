/*
 * trainer/model/network.h - the part of the network that a rank computes: views of its parameters
 * as layers. The layout's boxes decide which heads, features and rows of the vocabulary a rank
 * has.
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
    const float *weight; /* in fp32, also in bf16 runs */
    float *grad;
    const float *bias; /* of a layer norm; NULL: RMS norm */
    float *bias_grad;
    int64_t stride;       /* of a norm that is cut: elements to the next shard's weight and grad */
    float *row_bias_grad; /* of the row layer below, whose result the norm reads: its bias'
                             gradient, if the norm's backward pass sums it; else NULL */
};

struct network_layer {
    struct network_norm attn_norm, mlp_norm; /* weight NULL: the block reads the residual */
    struct network_norm attn_post_norm, mlp_post_norm; /* of what a block adds to the residual;
                                                          weight NULL: none */
    struct linear qkv, out;                            /* column-parallel, row-parallel */
    struct network_norm q_norm, k_norm; /* of each head, or of all heads; weight NULL: none */
    int64_t window;         /* keys that a token sees, itself included; 0: all before it */
    const float *rope;      /* its rotary table; NULL: the layer rotates nothing */
    struct linear up, down; /* column-parallel (in Llama gate and up side by side), row-parallel */
    struct linear router, gate; /* of a mixture of experts, where gate, up and down are those of its
                                   first expert, and `stride` leads to the next one's */
    struct pairwise_range grads; /* of all parameters of the layer, in whole spans */
    int unit; /* zero3: its FSDP unit (trainer/data_parallel/fsdp_units.h); else -1 */
};

/* A virtual stage: consecutive layers that microbatches pass through together. A rank has one, or
 * several with an interleaved schedule. */
struct network_vstage {
    int first, n; /* in net.layers */
};

/* Rows of the embedding's or the head's matrix that a rank has. A plan may cut one and not the
 * other. */
struct network_vocab_rows {
    int64_t first, per_shard; /* of a shard; per_shard may be 0 */
    int64_t total;            /* of all shards of this rank; the last ones may have fewer */
};

struct network {
    const struct model *model;
    enum dtype dtype, inner, outer; /* of the run; inside of blocks, and what blocks compute
                                       (trainer/sizing/rank_dims.h) */
    struct kernel_queue k;          /* for computing */
    struct comm *tp;
    struct ring_group ring; /* over cp */
    struct zigzag tokens;   /* the tokens of a sequence that this rank has */
    int64_t seq;            /* how many these are: the whole sequence, or with cp a part */
    int split;              /* ranks that share the rows of the residual: tp with sp, else 1 */
    float *whole;           /* with sp: [rows][h] for collectives */
    enum recompute recompute;
    bool same_bits;        /* every sum has one order; see trainer/same_bits/same_bits.h */
    int shards, n_virtual; /* tensor shards of this rank and of all; without same_bits 1 and tp */
    float *sums;           /* with several shards: [shards][rows][h], terms of a sum */
    int64_t heads, kv_heads, ffn; /* of one shard */
    int64_t q_width, kv_width, qkv_width;
    bool has_qkv_by_head;            /* qkv computes query, key and value head by head */
    bool is_parallel;                /* both blocks of a layer read the residual before it */
    bool norms_all_heads;            /* q_norm and k_norm are of all heads, so they are cut */
    int64_t up_width;                /* 2 ffn or ffn */
    int experts, per_token;          /* of a mixture of experts; else 0 and 1 */
    int64_t token_copies;            /* most rows of the MLP for each token */
    struct comm *ep;                 /* ranks that share the experts; NULL: there are no others */
    struct device_event *counted;    /* the rows of experts have been copied to the host */
    int load;                        /* floats of a sequence; see trainer/model/experts.h */
    struct network_vocab_rows table; /* of the embedding, on the first stage */
    struct network_vocab_rows logit; /* of the head, on the last */
    bool is_first, is_last;          /* has the embedding; has the head */
    bool is_sharded;                 /* zero3: weights are in memory while they are needed */
    int first_unit, last_unit;       /* of the embedding, of the head; -1: always in memory */
    int n_layers, n_vstages;         /* of this rank's stages */
    struct network_layer *layers;
    int *layer_numbers; /* [n_layers] in the model */
    struct network_vstage *vstages;
    const void *embedding;
    float *embedding_grad;
    int64_t embedding_stride;  /* elements to the next shard's */
    struct comm *embedding_tp; /* NULL: not cut, every rank has all rows */
    const float *positions;    /* [max_positions, and the family's extra ones before them][h]
                                  f32, learned; NULL: rotary */
    float *positions_grad;
    struct network_norm final_norm;
    struct linear head;                     /* its weight is the embedding when tied */
    struct pairwise_range before, after[2]; /* gradients before and after the layers */
    const struct pairwise_sum *pairwise;    /* borrowed */
    float embedding_factor; /* what the embedding is multiplied by, where the residual begins */
    float residual_eps;     /* of the norms that read the residual, which is the model's divided by
                               residual_multiplier */
    float *rope;            /* kernels/rope.h's table for the rank's seq positions */
    float *local_rope;      /* that of layers with a sliding window; NULL: the same */
};

/* Find this rank's layers and tokens, and its rows of the vocabulary from the boxes of `p`. d: the
 * dimensions of its stage. */
tp_status network_init(struct network *n, const struct model *m, const struct layout *l,
                       const struct params *p, const struct rank_dims *d, int rank,
                       struct arena *arena, struct tp_err *err);

/* Returns how many rows a shard has; *first is the first of them. */
int64_t network_vocab_rows_of(const struct network_vocab_rows *v, int shard, int64_t *first);

/* Point the layers to parameters and scratch, which have memory, and fill the rotary table. n->k
 * is set. */
tp_status network_bind(struct network *n, const struct layout *l, const struct params *p,
                       const struct activations_scratch *w, const struct process_groups *groups,
                       struct tp_err *err);

#endif
