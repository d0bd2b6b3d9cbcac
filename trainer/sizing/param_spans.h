/*
 * trainer/sizing/param_spans.h - the memory of a rank's parameters: a few spans with the same
 * order of entries (weights, gradients, moments). So the optimizer and the reduction over
 * data-parallel ranks process contiguous memory.
 *
 * There are three kinds of spans. Whole ones have all of the rank's entries, at param.at; with
 * zero3 they have one FSDP unit at a time. Owned ones have the rows that this rank updates, at
 * param.own.to. Packs are for sending.
 *
 *               fp32            bf16                          fp32 zero3       bf16 zero3
 *   replicas    value           value, value_bf16
 *   zero1       value           owned, value_bf16, vectors    value, owned     value_bf16, vectors,
 *                                                                              owned, owned_bf16
 */
#ifndef TRAINER_SIZING_PARAM_SPANS_H
#define TRAINER_SIZING_PARAM_SPANS_H

#include <stdbool.h>
#include <stdint.h>

#include "trainer/sizing/buffer_pool.h"
#include "trainer/sizing/param_list.h"

enum { PARAM_PACKS_MAX = 2, PARAM_LEVELS_MAX = 24 };

/* Elements of the spans. */
struct param_sizes {
    struct param_rank rank; /* the first of its stage */
    bool is_sharded;        /* zero3: this rank keeps only what it owns */
    bool is_partitioned;    /* ZeRO, with several dp ranks */
    int64_t n_entries;
    int64_t n_elements; /* of a whole span */
    int64_t n_vectors;  /* of these, the ones that layers read in fp32 */
    int64_t n_partial;  /* of these, the ones that tp ranks sum with sp */
    int64_t n_owned;    /* of an owned span */
    int64_t n_head; /* after the other sums: --same-bits' gradients of a tied head on the stage of
                       the embedding */
    int n_levels;   /* --same-bits: gradients of earlier gradient groups */
    int n_packs;    /* buckets that can be sent at the same time */
    bool is_one_bucket;       /* the list has fewer elements than a bucket */
    int64_t pack_floats;      /* of each: a bucket's gradients (zero1) or weights of all owners */
    int64_t grad_pack_floats; /* zero3: a unit's gradients of all owners */
    int64_t expert_pack_floats, expert_grad_pack_floats; /* zero3 with ep: the same of experts */
    int64_t n_places, n_rows; /* --same-bits: numbers of the gradient norm */
};

struct param_spans {
    float *value;         /* the weights in fp32; in bf16 without ZeRO the masters; or NULL */
    uint16_t *value_bf16; /* rounded to bf16, for products; NULL in fp32 */
    float *vectors;       /* in bf16 with ZeRO: the weights that layers read in fp32; else NULL */
    float *grad;          /* in memory for collectives, except with zero3 */
    float *partial;       /* where partial gradients are summed; in memory for collectives */
    float *owned;         /* what AdamW updates, if that is not `value` */
    uint16_t *owned_bf16;
    float *owned_grad; /* zero3: summed over the microbatches; in memory for collectives */
    float *exp_avg, *exp_avg_sq;
    float *pack;      /* [n_packs][pack_floats], in memory for collectives, like the next field */
    float *grad_pack; /* zero3: for gradients, while `pack` is for weights */
    float *expert_pack, *expert_grad_pack; /* zero3 with ep: the same for experts */
    float *level[PARAM_LEVELS_MAX];        /* for --same-bits, as are the next two */
    double *places, *rows;                 /* in memory for collectives */
    double *squares; /* [n_entries] sum of squares of each entry's gradient, for the norm */
};

void param_spans_take(struct param_spans *s, const struct param_sizes *z, struct buffer_pools *p);

#endif
