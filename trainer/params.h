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

struct param {
    int tensor; /* index in the layout: group "param" */
    struct box box;
    int64_t at, n; /* elements, in every span; n may be 0 */
    bool decay;    /* matrices, not norms */
    bool counted;  /* in this rank's part of the gradient norm: of several tp ranks that hold the
                      same part, the first counts it */
    bool shared;   /* other tp ranks hold the same part and see other heads' gradients of it */
};

struct params {
    enum dtype dtype;
    int n;
    struct param *list;
    int64_t n_elements;   /* of a span; gaps between tensors are zero and stay it */
    float *value;         /* what AdamW updates: the weights, in bf16 their masters */
    uint16_t *value_bf16; /* rounded, for the products; NULL in fp32 */
    float *grad;          /* in memory that collectives reach */
    float *exp_avg, *exp_avg_sq;
};

/* List the parameters of `rank` and lay them out. Memory comes with params_take. */
tp_status params_init(struct params *p, const struct layout *l, int rank, enum dtype dtype,
                      struct arena *arena, struct tp_err *err);

/* Take the spans; shared is memory for collectives. */
void params_take(struct params *p, struct span *shared, struct span *own);

/* Number in the list of the tensor of this name, or -1: not on this rank's stage. */
int params_find(const struct params *p, const struct layout *l, const char *name);

/* What products read: bf16 in bf16, else f32. */
const void *params_operand(const struct params *p, int64_t at);

/* Round all masters to bf16; nothing in fp32. */
void params_round(struct params *p);

/* The span that holds tensors of this group, and *dtype of its elements; NULL: no such group. */
void *params_span(const struct params *p, const char *group, enum dtype *dtype);

#endif
