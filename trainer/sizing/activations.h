/*
 * trainer/sizing/activations.h - what a microbatch keeps from its forward to its backward pass,
 * and the scratch that layers use one after another.
 *
 * rows = sequences * tokens of a microbatch that this rank has. Per layer, in elements: rows * (4
 * h + (2 q + 2 kv + 3 f of this rank)), Korthikanti et al. 2022 without dropout and without stored
 * attention scores, plus three floats per row (two norms, and one log-sum-exp per head). A
 * schedule with several microbatches in flight has several slots and one scratch.
 *
 * `type` below is the run's dtype: f32 or bf16. `inner` and `outer` (trainer/sizing/rank_dims.h)
 * are f32 too, or bf16 in a bf16 run on a device that keeps_bf16 (kernels/ops.h). With --same-bits
 * a rank has several tensor shards: a buffer that is as wide as a shard's part (qkv, attended, lse,
 * up, hidden; ffn_scratch, dqkv, bf16_scratch) is [shards][rows][width of a shard].
 */
#ifndef TRAINER_SIZING_ACTIVATIONS_H
#define TRAINER_SIZING_ACTIVATIONS_H

#include "trainer/sizing/buffer_pool.h"
#include "trainer/sizing/rank_dims.h"

struct comm_request; /* comm/collective.h */

/* Which experts compute a token. A token has a copy for each of its experts, and copies are sorted
 * by expert (kernels/router.h, kernels/permute.h). */
struct activations_experts {
    float *probs;    /* [rows][experts] of the router */
    float *weights;  /* [rows][per_token] */
    int32_t *chosen; /* [rows][per_token], as are the next two */
    int32_t *place, *source;
    int32_t *offsets; /* [experts + 1] */

    /* with ep (struct permute_dispatch); its copies are those of all ep ranks for this one's
     * experts */
    int32_t *groups;      /* [experts + 1]; send and recv follow it at once */
    int32_t *send, *recv; /* [ep + 1] */
    float *given;         /* [copies] weights */

    /* pinned, for devices whose operations read numbers of rows on the host: groups, send and recv,
     * or without ep offsets */
    int32_t *host_rows;
};

struct activations_layer {
    float *x;          /* [rows][h] the residual that enters the layer, then the experts' load of
                          each sequence, if the loss has it; for collectives */
    float *stats;      /* [2][rows] of attn_norm; for RMS norm [1][rows] */
    void *normed;      /* [rows][h] type: attn_norm(x); without this norm x, which in f32 has no
                          copy here. So are mid_stats and mid_normed */
    void *qkv;         /* [rows][qkv_width] type, rotated */
    void *heads;       /* [rows][q_width + kv_width] inner: queries and keys before their norms, of
                          models that have these */
    float *head_stats; /* [rows][heads], then [rows][kv_heads] of these norms; of norms of all
                          queries and of all keys [2][rows] */
    void *attended;    /* [rows][q_width] type */
    float *lse;        /* [sequences][heads][tokens] */
    float *mid;        /* [rows][h] the residual between the blocks; for collectives */
    float *mid_stats;
    void *mid_normed;         /* [rows][h] type: mlp_norm(mid) */
    void *attn_out, *mlp_out; /* [rows][h] outer: what a block computes, before the norm of it, of
                                 models that have these; for collectives */
    float *attn_out_stats, *mlp_out_stats; /* [rows] of these norms */
    struct activations_experts experts; /* of a mixture of experts, whose up and hidden have a row
                                           for each copy of a token, sorted by expert */
    void *up;     /* [rows][up_width] inner: gate and up, or up; where that is `type` backward
                     overwrites them with their gradients */
    void *hidden; /* [rows][ffn] type: silu(gate) * up, gelu(up) or relu(up) */
};

/* With full recomputation a slot keeps only x of its layers, and scratch has one of everything
 * else. With selective recomputation scratch has one attended and one lse. */
struct activations {
    int32_t *ids, *targets; /* [rows] */
    struct activations_layer *layers;
    float *x;                  /* [rows][h] the output of the last layer, and the load as in x of a
                                  layer; for messages */
    struct comm_request *sent; /* the message with x to the next stage; in pipelines */
    float *stats;
    void *normed; /* final_norm(x): what the head reads */
};

/* Ring attention: two blocks of keys and values. One is in use and sent on, the next one arrives in
 * the other. */
struct ring_buffers {
    void *kv[2];     /* [rows][2 kv_width] type: keys, values; for messages */
    float *dkv[2];   /* their gradients */
    float *dkv_part; /* [rows][2 kv_width] with three ranks and more: this rank's part of them */
};

enum { SCRATCH_DX_BUFFERS = 2 }; /* in pipelines: one in use, one being sent */

struct activations_scratch {
    float *dx; /* [rows][h] gradient of the residual: one of dx_buffers. Then the load of x, of all
                  layers and cp ranks */
    float *dx_buffers[SCRATCH_DX_BUFFERS];         /* one; in pipelines both, for messages */
    struct comm_request *sent[SCRATCH_DX_BUFFERS]; /* in pipelines: to the previous stage */
    int dx_next;
    void *copies;  /* of a mixture of experts, as are the next three: [rows * per_token][h] type */
    void *results; /* [rows * per_token][h] of the experts, inner; gradients of their inputs. With
                      ep this and dweights are of the copies of this rank's experts, and copies,
                      results and dweights are for collectives */
    float *dweights; /* [rows][per_token] */
    void *received;  /* with ep, as are the next three: the copies of this rank's experts */
    void *returned;  /* results of the rank's own copies, inner */
    float *sorted;   /* [rows * per_token] weights or their gradients, in the order of the copies;
                        for collectives */
    int32_t *all_offsets; /* [ep][experts + 1] offsets of all ranks */
    void *dlogits;        /* [rows][experts] type */
    void *outer;          /* [rows][h] outer: gradient of a norm's output; for collectives. If bf16,
                             also what a block computes, until it is added to the residual */
    float *dblock;        /* [rows][h] gradient of what a block computes, before the norm of it */
    void *ffn_scratch;    /* [rows][max(ffn, q_width, vocab)]: logits, inner; gradients of a
                             row-parallel layer's input, inner; with cp sums of attention in f32;
                             where query, key and value are head by head also these, and their
                             gradients: [rows][qkv_width], inner */
    void *dqkv; /* [rows][qkv_width] inner; also qkv before it is rounded, where the product
                   did not write it in bf16 */
    float
        *dqkv_sums; /* the same in f32, where inner is bf16: with cp sums over the ring's blocks */
    uint16_t *bf16_scratch;         /* bf16 with an inner of f32: [rows][max(2 ffn, qkv_width,
                                       vocab)] rounded gradients */
    uint16_t *dy;                   /* bf16: [rows][h] rounded dx */
    struct activations_layer layer; /* recomputation: of the current layer, without x; selective:
                                       only attended and lse */
    float *row_max;                 /* [rows] of the loss; for collectives */
    float *row_sums;   /* [2][rows]: sums of exponentials, logits of targets; for collectives */
    float *part_sums;  /* with several shards: row_sums of each */
    float *norm_sums;  /* [2][rows] sums of norms of all queries and of all keys, where these are
                          cut; for collectives */
    float *norm_parts; /* with several shards: [shards][2][rows], those of each */
    float *blocks;     /* --same-bits: [blocks][stats][h], gradients of blocks of the residual's
                          rows, or of norms of queries and keys: [shards][2][head_dim], or [q_width]
                          of a shard; for collectives */
    struct ring_buffers ring; /* with cp */
    float *whole;             /* with sp: [rows][h] for collectives */
    float *sums;              /* with several shards: [shards][rows][h], terms of a sum */
    float *unit_weight; /* [max(h, head_dim)] of norms that multiply by 1 + weight: this sum */
    float *rope;        /* the rotary table of the rank's tokens (kernels/rope.h) */
    float *local_rope;  /* that of layers with a sliding window, where they have their own */
};

/* How many numbers host_rows has. */
int64_t activations_host_rows(int experts, int ep);

/* Take the buffers of n slots; each slot has room for d->stage_layers layers. While counting, one
 * slot with one layer is enough. */
void activations_take(struct activations *slots, int64_t n, const struct rank_dims *d,
                      struct buffer_pools *p);

void activations_scratch_take(struct activations_scratch *s, const struct rank_dims *d,
                              struct buffer_pools *p);

#endif
