/*
 * trainer/sizing/param_list.h - the parameters that a rank has of a group of tensors, and where
 * they lie. The list of a whole rank (trainer/data_parallel/params.h) and its size
 * (trainer/sizing/param_count.h) are made of these.
 *
 * Which box of which tensor a rank holds is what the layout says. q, k and v of a layer follow each
 * other without a gap, and so do gate and up: each such group is one matrix to the products.
 *
 * With --same-bits N a rank of tp ranks has N / tp tensor shards: of every cut tensor (or group) it
 * has what each of N ranks would have, one after the other, each on a cache line of its own. Where
 * N is more than the KV heads several shards are copies of one another.
 */
#ifndef TRAINER_SIZING_PARAM_LIST_H
#define TRAINER_SIZING_PARAM_LIST_H

#include <stdbool.h>
#include <stdint.h>

#include "layout/dtype.h"
#include "layout/spec.h"
#include "layout/tensor.h"

enum {
    PARAM_GAP = 16,                     /* tensors start on cache lines */
    PARAM_BUCKET = 1 << 18,             /* see param_bucket_takes */
    PARAM_SHARD_MAX = TENSOR_BOXES_MAX, /* most entries of a group and shard */
};

/* Some rows of an entry. */
struct param_partition {
    struct box box;
    int64_t from, n;      /* elements in the spans that have all of the entry; n may be 0 */
    int64_t to;           /* where it lies in its owner's spans */
    int64_t packed;       /* in its owner's part of a pack, when its bucket's gradients are there */
    int64_t grad;         /* in `grad`: where its owner's gradients are, once they are summed */
    int64_t packed_bytes; /* in its part of a pack, when its bucket's weights are */
};

struct param {
    int tensor;        /* index in the layout: group "param" */
    int layer;         /* of that tensor, or LAYER_FIRST or LAYER_LAST */
    int unit;          /* what it is ready with in a backward pass, and with zero3 gathered: layer,
                          LAYER_FIRST or LAYER_LAST */
    int part;          /* of a tensor that is fused of several: one entry each, without a gap */
    int shard;         /* the tp rank, or with --same-bits the emulated one, whose part this is */
    bool joins;        /* lies straight behind the entry before */
    bool begins_group; /* is the first of its group of tensors */
    struct box box;
    int64_t at, n;     /* elements, in every span of whole entries; n may be 0 */
    int64_t vector_at; /* in `vectors` */
    enum dtype type;   /* that layers read it as: bf16 for products, f32 what is added */
    struct param_partition
        own;      /* what this rank updates and keeps the moments of: all, or with ZeRO a part */
    bool decay;   /* matrices, not norms */
    bool summed;  /* kernels add to its gradient, and never replace it */
    bool counted; /* in this rank's part of the gradient norm: of several tp ranks that hold the
                     same part, the first counts it */
    bool partial; /* with sp: each tp rank has the gradient of its own rows of the residual, until
                     the step's end; with --same-bits they are added at once */
    bool after;   /* the layers */
    bool copy;    /* of a tensor that another stage holds: the embedding, for a tied head */
    bool shared;  /* other tp ranks (or shards) hold the same part and see other heads' gradients */
    int place;    /* --same-bits: in params.places, of its part of the gradient norm */
    int64_t row;  /* and of its first row in params.rows */
};

/* Whose parameters are listed. */
struct param_rank {
    struct spec spec;
    int tp;    /* its coordinate */
    bool ties; /* the head uses the embedding's weights */
    enum dtype dtype;
    bool same_bits;
    int n_virtual; /* tensor shards of the run; without --same-bits tp */
    int n_shards;  /* of these, this rank's */
    int n_owners;  /* ranks that ZeRO partitions the tensors over: dp, or 1 */
};

/* same_bits: the emulated tensor-parallel degree, a multiple of tp; 0: off. */
struct param_rank param_rank_make(const struct spec *s, int tp, enum dtype dtype, int same_bits,
                                  bool ties);

/* zero3: this rank keeps no more than it owns. */
bool param_rank_is_sharded(const struct param_rank *r);

/* Tensor t and those behind it that are one matrix with it to the products: how many. */
int param_group_size(const struct tensor *tensors, int n_tensors, int t);

/* Whether pipelines put the tensor at both ends: an embedding that is the head too. The first stage
 * owns it, the last has a copy. */
bool param_is_at_both_ends(const struct param_rank *r, const struct tensor *t);

/* What a tensor is gathered with by zero3: its layer, or what is before or after the layers. */
int param_unit_of(const struct param_rank *r, const struct tensor *t, bool copy);

/* List the entries of one shard of the group of n tensors that begins with tensors[first]. at,
 * vector_at, own and the numbers of the norm are left 0. copy: the group is another stage's.
 * Returns their number. */
int param_list_shard(struct param out[PARAM_SHARD_MAX], const struct param_rank *r,
                     const struct tensor *tensors, int first, int n, int shard, bool copy);

/* The shards that the rank has of a group: the first, and in *n how many. */
int param_shards_of(const struct param_rank *r, const struct tensor *t, int *n);

/* What dp rank `owner` updates of an entry. The positions `to` and in packs are left 0. */
struct param_partition param_piece(const struct param_rank *r, const struct tensor *t,
                                   const struct param *q, int owner);

/* Place n elements behind *end, on a cache line unless they join what is there. Returns where they
 * begin; *end is behind them. */
int64_t param_place(int64_t *end, int64_t n, bool joins);

/* Bytes of the weights of n elements in a pack, which begins them on a whole float where a group of
 * tensors begins. *end as param_place. */
int64_t param_pack(int64_t *end, int64_t n_bytes, bool begins_group);

/* A bucket that is being filled from a rank's list. */
struct param_bucket_fill {
    bool is_whole_list; /* all of the list is smaller than a bucket */
    int layer;          /* of its first entry */
    bool begins_layer;  /* its first entry is the first of that layer */
    int64_t n;          /* elements */
};

/* Whether a bucket, which ends with an entry of `previous`, takes the next entry.
 *
 * A bucket is closed at about PARAM_BUCKET elements: few enough that most gradients are on their
 * way while backward still computes, enough that the cost of a call does not matter. It has whole
 * layers, or a part of one; so buckets are alike for all layers, and their sizes are known from
 * one. A group of tensors is in one bucket. */
bool param_bucket_takes(const struct param_bucket_fill *b, int previous, const struct param *next);

#endif
