/*
 * reshard/formats/deepspeed/parallel_param.h - what a parameter of a model-parallel rank is in the
 * model: inside reshard/formats/deepspeed/ only. model_parallel.c reads the files.
 */
#ifndef RESHARD_FORMATS_DEEPSPEED_PARALLEL_PARAM_H
#define RESHARD_FORMATS_DEEPSPEED_PARALLEL_PARAM_H

#include "reshard/formats/deepspeed/deepspeed_state.h"
#include "reshard/formats/deepspeed/rank_copies.h"
#include "reshard/formats/megatron/megatron_rank.h"

/* What a parameter of a rank is. */
enum parallel_param_kind {
    PARALLEL_UNKNOWN, /* the model has no such tensor */
    PARALLEL_PART,    /* rows or columns of the model's tensors */
    PARALLEL_COPY,    /* each tensor-parallel rank has it whole */
    PARALLEL_SHARED,  /* an earlier stage has the same */
};

struct parallel_param {
    enum parallel_param_kind kind;
    struct megatron_rank_param param;
};

struct deepspeed_ranks {
    struct deepspeed_state *state;
    struct megatron_rank rank;      /* whose parameters are added */
    struct deepspeed_shapes *ranks; /* [mp] */
    struct parallel_param *params;  /* [of state->params] of that rank */
    int tp;
    bool is_neox;
    bool has_weights;                         /* model states of ranks after the first have them */
    int first_layer, last_layer, last_module; /* of the pipeline */
    struct rank_copies *copies;
};

/* Find out what a tensor of this name and shape of the rank m->rank is. TP_E_CORRUPT: the model's
 * has another shape. */
tp_status parallel_param_find(struct parallel_param *out, struct deepspeed_ranks *m,
                              const char *name, int ndim, const int64_t *shape, struct tp_err *err);

/* Add the tensor, which a file has whole. */
tp_status parallel_param_add(struct deepspeed_ranks *m, const struct parallel_param *is,
                             const struct piece *p, struct tp_err *err);

/* Add elements first .. first + n - 1 of a parameter of d->params, in row-major order; they lie in
 * p->file from p->begin on. p says name, shape, group, type and sum. */
tp_status parallel_param_add_interval(const struct deepspeed_state *d,
                                      const struct deepspeed_state_param *param,
                                      const struct piece *p, int64_t first, int64_t n,
                                      struct tp_err *err);

/* Add all of a parameter of a Universal checkpoint. */
tp_status parallel_param_add_whole(const struct deepspeed_state *d,
                                   const struct deepspeed_state_param *param, const struct piece *p,
                                   struct tp_err *err);

#endif
