/*
 * trainer/sizing/rank_dims.h - the dimensions of a rank's part of a run: widths, rows, layers and
 * microbatches. The sizes of all buffers for activations follow from these.
 *
 * They are those of the first rank of a pipeline stage. Other ranks of the stage have the same, or
 * less if the vocabulary does not divide; they use buffers of the same size.
 */
#ifndef TRAINER_SIZING_RANK_DIMS_H
#define TRAINER_SIZING_RANK_DIMS_H

#include <stdbool.h>
#include <stdint.h>

#include "layout/model.h"
#include "layout/spec.h"
#include "layout/workload.h"

/* Which parts of a model its parallel plan cuts. */
struct rank_dims_cuts {
    bool attention, mlp, head;
};

struct rank_dims_cuts model_cuts_of(const struct model *m);

struct rank_dims {
    enum dtype dtype;
    enum dtype inner; /* of what lies between the products of a block: f32, or dtype on a device
                         that keeps_bf16 (kernels/ops.h) */
    enum dtype outer; /* the same of what a block adds to the residual, and of the gradient of what
                         it reads */
    enum recompute recompute;
    int64_t micros;           /* microbatches of a step */
    int64_t sequences;        /* of a microbatch */
    int64_t seq;              /* tokens of a sequence; with cp those of this rank */
    int64_t hidden, head_dim; /* of the model */
    int64_t rotary_dim;       /* elements of a head that are rotated */
    int norm_stats;           /* floats that a norm keeps for each row */
    bool is_rotary;           /* positions come from a table, not from weights */
    bool has_unit_norms;      /* norms multiply by 1 + weight */
    bool has_qkv_by_head;     /* a fused query, key and value has these three head by head */
    bool has_head_norms;      /* of each head's queries and keys */
    bool has_whole_norms;     /* of all queries and of all keys of a token */
    bool has_pre_norms;       /* of the residual that a block reads */
    bool has_post_norms;      /* of what a block adds to the residual */
    bool has_local_rope;      /* layers with a sliding window have a rotary table of their own */
    bool caps_scores;         /* of attention */
    int experts, per_token;   /* of a mixture of experts, and of these a token's; else 0 and 1 */
    int ep;                   /* ranks that share the experts */
    int64_t token_copies;     /* most rows of the MLP for each of the rank's tokens: per_token, or
                                 with ep as many as if all ranks chose this rank's experts */
    int load;                 /* floats about the experts' load of a sequence, which go with the
                                 residual (trainer/model/experts.h); 0: the loss does not have it */

    bool is_first, is_last; /* has the embedding; has the head */
    bool is_pipeline;       /* there are several stages */
    bool is_ring;           /* sequences are cut over cp ranks */
    bool has_long_ring;     /* over three and more */
    int split;              /* ranks that share the rows of the residual: tp with sp, else 1 */
    int n_layers;           /* of this rank */
    int stage_layers;       /* of its largest virtual stage */
    int64_t n_slots;        /* passes whose activations it keeps at the same time */

    bool same_bits;
    int n_virtual, shards; /* tensor shards of the run, of this rank; else tp and 1 */

    /* of one shard */
    int64_t heads, kv_heads, ffn;         /* ffn: of the MLP, or of each expert */
    int64_t q_width, kv_width, qkv_width; /* qkv_width: of query, key and value */
    int64_t up_width;                     /* gate and up, or up */
    int64_t logit_rows;                   /* of the head; 0 on other stages */
};

/* The dimensions of the first rank of stage `pp`. cuts: of m. If the batch is not known, the
 * number of microbatches is the most that a pipeline can keep. */
struct rank_dims rank_dims_make(const struct model *m, const struct rank_dims_cuts *cuts,
                                const struct spec *s, const struct workload *w, int pp);

#endif
