/*
 * trainer/model/activations.h - what a microbatch leaves between its forward and its backward pass,
 * and the scratch that layers use one after another.
 *
 * rows = sequences * tokens of a microbatch that this rank has. Per layer, in elements: rows * (4 h
 * + (2 q + 2 kv + 3 f of this rank)), Korthikanti et al. 2022 without dropout and without stored
 * attention scores, plus three floats a row (two norms, and one log-sum-exp a head). A schedule
 * with several microbatches in flight has several slots and one scratch.
 */
#ifndef TRAINER_MODEL_ACTIVATIONS_H
#define TRAINER_MODEL_ACTIVATIONS_H

#include "trainer/buffer_pool.h"
#include "trainer/context/ring_attention.h"
#include "trainer/model/network.h"
#include "trainer/pipeline/schedule.h"

/* `type` below is the run's dtype: f32 or bf16. With --same-bits a rank plays several shards: what
 * has the width of a part (qkv, attended, lse, up, hidden; wide, dqkv, narrow) is [shards][rows]
 * [width of a shard]. */
struct layer_slot {
    float *x;       /* [rows][h] residual stream that enters the layer; for collectives */
    float *stats;   /* [2][rows] of attn_norm; root mean square: [1][rows] */
    void *normed;   /* [rows][h] type: attn_norm(x) */
    void *qkv;      /* [rows][qkv_width] type, rotated */
    void *attended; /* [rows][q_width] type */
    float *lse;     /* [sequences][heads][tokens] */
    float *mid;     /* [rows][h] residual stream between the blocks; for collectives */
    float *mid_stats;
    void *mid_normed; /* [rows][h] type: mlp_norm(mid) */
    float *up;        /* [rows][up_width] gate and up, or up; backward, in fp32: their gradients */
    void *hidden;     /* [rows][ffn] type: silu(gate) * up, or gelu(up) */
};

/* With recomputation a slot keeps x of its layers alone, and scratch has one of everything else;
 * with that of attention alone scratch has one of attended and lse. */
struct slot {
    int32_t *ids, *targets; /* [rows] */
    struct layer_slot *layers;
    float *x;                  /* [rows][h] that leaves the last layer; for messages */
    struct comm_request *sent; /* x, to the next stage; with pipelines */
    float *stats;
    void *normed; /* final_norm(x): what the head reads */
};

struct scratch {
    float *dx; /* [rows][h] gradient of the residual stream: one of dx_buffers */
    float
        *dx_buffers[SCHEDULE_BUFFERS]; /* the second one, and memory for messages, with pipelines */
    struct comm_request *sent[SCHEDULE_BUFFERS]; /* each, to the stage before; with pipelines */
    int dx_next;
    float *dnormed; /* [rows][h] gradient of a norm's output; for collectives */
    float *wide;    /* [rows][max(ffn, q_width, vocab)]: logits; gradients of a row layer's input */
    float *dqkv;    /* [rows][qkv_width]; forward in bf16: before rounding */
    uint16_t *narrow;        /* bf16: [rows][max(2 ffn, qkv_width, vocab)] rounded gradients */
    uint16_t *dy;            /* bf16: [rows][h] rounded dx */
    struct layer_slot layer; /* with recomputation: of the layer at work, without x; or only
                                attended and lse */
    float *row_max;          /* [rows] of the loss; for collectives */
    float *row_sums;  /* [2][rows]: sums of exponentials, logits of targets; for collectives */
    float *part_sums; /* with several shards: [shards] of them */
    float *blocks; /* --same-bits: [blocks][stats][h], gradients of blocks of the stream's rows; for
                      collectives */
    struct ring ring;
};

struct reduction;
struct units; /* trainer/data_parallel/fsdp_units.h */

/* A pass of one microbatch through a rank's layers. */
struct pass {
    const struct net *net;
    struct scratch *scratch;
    struct units *units;
    int64_t sequences, rows;     /* under cp a sequence's rows are those that this rank has */
    int64_t stream_rows;         /* that this rank has of the stream: all, or under sp a part */
    bool add;                    /* gradients add to those of the step's earlier microbatches (with
                                    --same-bits: of the leaf's) */
    int64_t leaf;                /* --same-bits: that this microbatch is of */
    bool ends_leaf;              /* and completes; false without */
    struct reduction *reduction; /* backward of the last microbatch: told what is final; or NULL */
};

/* layers of slot come from the arena: as many as the largest chunk has. */
tp_status slot_init(struct slot *s, const struct net *n, struct arena *arena, struct tp_err *err);
void slot_take(struct slot *s, const struct net *n, int64_t sequences, struct buffer_pool *shared,
               struct buffer_pool *own);
void scratch_take(struct scratch *s, const struct net *n, int64_t sequences,
                  struct buffer_pool *shared, struct buffer_pool *own);

#endif
