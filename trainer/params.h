/*
 * trainer/params.h - the parameters that a rank holds: where each lies in a few parallel spans of
 * equal order (weights, gradients, moments), so that an optimizer's step and the reduction over
 * data-parallel ranks are runs over memory.
 *
 * Which box of which tensor a rank holds is the layout's to say. q, k and v of a layer follow each
 * other without a gap, and so do gate and up: each group is one matrix to the products.
 *
 * With --same-bits N a rank of tp ranks plays N / tp virtual ranks: it has of every cut tensor (or
 * group) what each of them would have at tp N, one after the other, each on a cache line of its
 * own. Where N is more than the KV heads several shards are copies of one another.
 */
#ifndef TRAINER_PARAMS_H
#define TRAINER_PARAMS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/arena.h"
#include "core/err.h"
#include "layout/layout.h"
#include "trainer/fold.h"
#include "trainer/span.h"

/* Some rows of an entry. */
struct piece {
    struct box box;
    int64_t from, n; /* elements in the spans of weights and gradients; n may be 0 */
    int64_t to;      /* where it lies in its owner's moments */
    int64_t packed;  /* and in its owner's part of `pack`, when its bucket is there */
};

/* Entries that ZeRO sends together: neighbours in the list. */
struct bucket {
    int first, n;
    int64_t each; /* elements of an owner's part: the most that any has of them */
};

struct param {
    int tensor; /* index in the layout: group "param" */
    int part;   /* of a tensor that is fused of several: one entry each, without a gap between */
    int shard;  /* the tp rank, or the virtual one, whose part this is */
    struct box box;
    int64_t at, n; /* elements, in every span; n may be 0 */
    struct piece
        own;      /* what this rank updates and keeps the moments of: all, or with ZeRO a part */
    bool decay;   /* matrices, not norms */
    bool counted; /* in this rank's part of the gradient norm: of several tp ranks that hold the
                     same part, the first counts it */
    bool partial; /* under sp: each tp rank has the gradient of its own rows of the stream, until
                     the step's end (with --same-bits they are added at once) */
    int place;    /* --same-bits: in params.places */
    int64_t row;  /* of the first row, in params.rows */
    bool copy;    /* of a tensor that another stage holds: the embedding, for a tied head */
    bool shared;  /* other tp ranks (or shards) hold the same part and see other heads' gradients */
};

struct params {
    enum dtype dtype;
    int n;
    struct param *list;
    bool same_bits;
    int n_virtual;      /* tp ranks that there seem to be: --same-bits, or tp */
    int n_shards;       /* of them, those that this rank plays */
    struct range tied;  /* a tied embedding that another stage has too; n 0: none */
    int64_t n_elements; /* of a span; gaps between tensors are zero and stay it */
    struct range head;  /* gradients alone, behind the others: of a tied head on the embedding's own
                         stage, kept apart until the step's end as it is on another; n 0: none */
    float *value;       /* what AdamW updates: the weights, in bf16 their masters */
    uint16_t *value_bf16; /* rounded, for the products; NULL in fp32 */
    float *grad;          /* in memory that collectives reach */
    struct fold fold;     /* --same-bits: where gradients of earlier microbatches are */
    int n_places;   /* --same-bits: numbers that the gradient norm is the sum of, all ranks' */
    double *places; /* in memory that collectives reach, as the next */
    int64_t n_rows; /* rows of all entries that this rank counts */
    double *rows;
    int64_t n_partial; /* elements of all that are partial */
    float *partial;    /* where they are summed together, in memory that collectives reach */
    int64_t n_moments; /* elements of each span of moments */
    float *exp_avg, *exp_avg_sq;

    /* ZeRO over the n_owners ranks of dp (1: everyone owns all); see trainer/zero.h */
    int n_owners;
    struct piece *pieces; /* [n_owners][n] */
    int n_buckets;
    struct bucket *buckets;
    float *pack; /* [n_owners][each] of one bucket, in memory that collectives reach */
};

/* List the parameters of `rank` and lay them out; same_bits: the virtual tensor degree, a multiple
 * of tp, or 0. Memory comes with params_take. */
tp_status params_init(struct params *p, const struct layout *l, int rank, enum dtype dtype,
                      int same_bits, struct arena *arena, struct tp_err *err);

/* Take the spans; shared is memory for collectives. */
void params_take(struct params *p, struct span *shared, struct span *own);

/* Number in the list of the (first part of the first shard of the) tensor of this role and layer,
 * or -1: not on this rank's stage. */
int params_find(const struct params *p, const struct layout *l, enum role role, int layer);

/* The first entry that holds what entry i does; with --same-bits several shards may hold the same
 * KV heads. */
int params_twin(const struct params *p, int i);

/* Give every entry that has a twin what the twin has. */
void params_copy_twins(const struct params *p);

/* Elements from one shard of entry i's tensor to the next; 0: there is one. */
int64_t params_stride(const struct params *p, int i);

/* What products read: bf16 in bf16, else f32. */
const void *params_operand(const struct params *p, int64_t at);

/* Round all masters to bf16; nothing in fp32. */
void params_round(struct params *p);

/* Where this rank keeps what entry i has of `group`: *within gets the box that lies there. NULL:
 * nothing of it here. */
void *params_place(const struct params *p, int i, const char *group, struct box *within,
                   enum dtype *dtype);

#endif
