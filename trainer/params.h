/*
 * trainer/params.h - the parameters that a rank holds: where each lies in a few parallel spans of
 * equal order (weights, gradients, moments), so that an optimizer's step and the reduction over
 * data-parallel ranks are runs over memory.
 *
 * Which box of which tensor a rank holds is the layout's to say. q, k and v of a layer follow each
 * other without a gap, and so do gate and up: each group is one matrix to the products.
 */
#ifndef TRAINER_PARAMS_H
#define TRAINER_PARAMS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/arena.h"
#include "core/err.h"
#include "layout/layout.h"
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
    struct box box;
    int64_t at, n; /* elements, in every span; n may be 0 */
    struct piece
        own;      /* what this rank updates and keeps the moments of: all, or with ZeRO a part */
    bool decay;   /* matrices, not norms */
    bool counted; /* in this rank's part of the gradient norm: of several tp ranks that hold the
                     same part, the first counts it */
    bool partial; /* under sp: each tp rank has the gradient of its own rows of the stream */
    bool copy;    /* of a tensor that another stage holds: the embedding, for a tied head */
    bool shared;  /* other tp ranks hold the same part and see other heads' gradients of it */
};

struct params {
    enum dtype dtype;
    int n;
    struct param *list;
    int tied;             /* entry of a tied embedding that another stage has too; -1: none */
    int64_t n_elements;   /* of a span; gaps between tensors are zero and stay it */
    float *value;         /* what AdamW updates: the weights, in bf16 their masters */
    uint16_t *value_bf16; /* rounded, for the products; NULL in fp32 */
    float *grad;          /* in memory that collectives reach */
    int64_t n_partial;    /* elements of all that are partial */
    float *partial;       /* where they are summed together, in memory that collectives reach */
    int64_t n_moments;    /* elements of each span of moments */
    float *exp_avg, *exp_avg_sq;

    /* ZeRO over the n_owners ranks of dp (1: everyone owns all); see trainer/zero.h */
    int n_owners;
    struct piece *pieces; /* [n_owners][n] */
    int n_buckets;
    struct bucket *buckets;
    float *pack; /* [n_owners][each] of one bucket, in memory that collectives reach */
};

/* List the parameters of `rank` and lay them out. Memory comes with params_take. */
tp_status params_init(struct params *p, const struct layout *l, int rank, enum dtype dtype,
                      struct arena *arena, struct tp_err *err);

/* Take the spans; shared is memory for collectives. */
void params_take(struct params *p, struct span *shared, struct span *own);

/* Number in the list of the (first part of the) tensor of this role and layer, or -1: not on this
 * rank's stage. */
int params_find(const struct params *p, const struct layout *l, enum role role, int layer);

/* Number in the list of the entry of this tensor's name whose box contains `box`, or -1. */
int params_find_box(const struct params *p, const struct layout *l, const char *name,
                    const struct box *box);

/* What products read: bf16 in bf16, else f32. */
const void *params_operand(const struct params *p, int64_t at);

/* Round all masters to bf16; nothing in fp32. */
void params_round(struct params *p);

/* Where this rank keeps what is in `box` of a tensor: *within gets the box that lies there,
 * row-major, as *dtype. NULL: it keeps no such thing. */
void *params_place(const struct params *p, const struct layout *l, const struct tensor *t,
                   const struct box *box, struct box *within, enum dtype *dtype);

#endif
