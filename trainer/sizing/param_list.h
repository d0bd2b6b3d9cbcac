/*
 * trainer/sizing/param_list.h - the parameters that a rank has of a group of tensors, and their
 * positions in memory. The list of a whole rank (trainer/data_parallel/params.h) and its size
 * (trainer/sizing/param_count.h) are made from these.
 *
 * The layout says which box of which tensor a rank holds. q, k and v of a layer follow each other
 * without a gap, and so do gate and up: the products use each such group as one matrix.
 *
 * With --same-bits N each of tp ranks has N / tp tensor shards: of every cut tensor (or group) it
 * has the parts of N / tp of N ranks, one after the other. Each part begins on a cache line. If N
 * is larger than the number of KV heads, several shards are copies of each other.
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
    int64_t from, n;      /* elements, in the spans of whole entries; n may be 0 */
    int64_t to;           /* its position in its owner's spans */
    int64_t packed;       /* in its owner's part of a pack that has its bucket's gradients */
    int64_t grad;         /* in `grad`: where its owner's gradients are after they are summed */
    int64_t packed_bytes; /* in its owner's part of a pack that has its bucket's weights */
};

struct param {
    int tensor; /* index in the layout: group "param" */
    int next;   /* the next entry of the same tensor; -1: this is the last */
    int layer;  /* of that tensor, or LAYER_FIRST or LAYER_LAST */
    int unit;   /* its gradient is ready with this unit's, and zero3 gathers it with this unit: a
                   layer, LAYER_FIRST or LAYER_LAST */
    int part;   /* of a fused tensor: each part has an entry, and there is no gap between them */
    int shard;  /* the tp rank, or with --same-bits the emulated one, whose part this is */
    bool joins; /* directly follows the previous entry */
    bool begins_group; /* is the first of its group of tensors */
    struct box box;
    int64_t at, n;              /* elements, in every span of whole entries; n may be 0 */
    int64_t vector_at;          /* in `vectors` */
    enum dtype type;            /* that layers read: the run's dtype for products, else f32 */
    struct param_partition own; /* what this rank updates: all, or with ZeRO a part */
    bool decay;                 /* matrices, not norms */
    bool summed;                /* kernels add to its gradient and never overwrite it */
    bool counted;   /* in this rank's part of the gradient norm: of several tp ranks that hold the
                       same part, the first counts it */
    bool partial;   /* tp ranks have gradients of their own rows of the residual (with sp), of
                       their own heads (norms of queries and keys) or of their own features of the
                       experts (the router), summed at the end of the step;
                       with --same-bits they are added at once */
    bool after;     /* its place in the model is after the layers */
    bool is_expert; /* of an expert that, with ep, only some of the dp x cp ranks have */
    bool copy;      /* of a tensor that another stage holds: the embedding, for a tied head */
    bool shared;    /* other tp ranks (or shards) hold the same part, with other heads' gradients */
    int place;      /* --same-bits: in params.places, of its part of the gradient norm */
    int64_t row;    /* in params.rows, of its first row */
};

/* Whose parameters are listed. */
struct param_rank {
    struct spec spec;
    int tp;    /* its coordinate */
    bool ties; /* the head uses the embedding's weights */
    enum dtype dtype;
    bool same_bits;
    int n_virtual;       /* tensor shards of the run; without --same-bits tp */
    int n_shards;        /* of these, this rank's */
    int n_owners;        /* ranks that ZeRO partitions the tensors over: dp, or 1 */
    int n_expert_owners; /* those that zero3 partitions experts over that ep divides, or 1 */
};

/* same_bits: the emulated tensor-parallel degree, a multiple of tp; 0: off. */
struct param_rank param_rank_make(const struct spec *s, int tp, enum dtype dtype, int same_bits,
                                  bool ties);

/* zero3: this rank keeps no more than it owns. */
bool param_rank_is_sharded(const struct param_rank *r);

/* The number of tensors, from t on, that the products use as one matrix. */
int param_group_size(const struct tensor *tensors, int n_tensors, int t);

/* Whether both ends of a pipeline have the tensor: an embedding that is also the head. The first
 * stage owns it, the last one has a copy. */
bool param_is_at_both_ends(const struct param_rank *r, const struct tensor *t);

/* The ranks over which ZeRO partitions an entry. */
int param_owners(const struct param_rank *r, bool is_expert);

/* The unit with which zero3 gathers a tensor: its layer, or what is before or after the layers. */
int param_unit_of(const struct param_rank *r, const struct tensor *t, bool copy);

/* List the entries of one shard of the group of n tensors that begins with tensors[first]. at,
 * vector_at, own and the numbers of the norm are left 0. copy: another stage owns the group.
 * Returns the number of entries. */
int param_list_shard(struct param out[PARAM_SHARD_MAX], const struct param_rank *r,
                     const struct tensor *tensors, int first, int n, int shard, bool copy);

/* The shards of a group that the rank has: returns the first, and *n gets their number. */
int param_shards_of(const struct param_rank *r, const struct tensor *t, int *n);

/* The part of an entry that number `owner` of its owners updates. The positions `to` and in packs
 * are left 0. */
struct param_partition param_piece(const struct param_rank *r, const struct tensor *t,
                                   const struct param *q, int owner);

/* Place n elements after *end, on a cache line unless they join the elements there. Returns where
 * they begin; *end is then after them. */
int64_t param_place(int64_t *end, int64_t n, bool joins);

/* Place n_bytes of weights in a pack. A group of tensors begins at a whole float. Returns and *end
 * as param_place. */
int64_t param_pack(int64_t *end, int64_t n_bytes, bool begins_group);

/* A bucket that is being filled from a rank's list. */
struct param_bucket_fill {
    bool is_expert;     /* its entries are; others are in other buckets */
    bool is_whole_list; /* the whole list is smaller than a bucket */
    int layer;          /* of its first entry */
    bool begins_layer;  /* its first entry is the first of that layer */
    int64_t n;          /* elements */
};

/* Whether the next entry belongs in the bucket, whose last entry is of layer `previous`.
 *
 * A bucket is closed at about PARAM_BUCKET elements. That is small enough that most gradients are
 * sent while backward still computes, and large enough that the cost of a call does not matter. A
 * bucket has whole layers, or a part of one layer. So buckets are the same for all layers, and the
 * sizes of one layer's are enough. A group of tensors is in one bucket. */
bool param_bucket_takes(const struct param_bucket_fill *b, int previous, const struct param *next);

#endif
