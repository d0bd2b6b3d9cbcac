/*
 * reshard/formats/megatron/megatron_rank.h - what one rank of Megatron-LM saved: inside
 * reshard/formats/ only. megatron.c finds the ranks, megatron_rank.c reads the weights of one,
 * megatron_stacked.c those of GroupedMLP, megatron_optimizer.c the state of its optimizer.
 */
#ifndef RESHARD_FORMATS_MEGATRON_MEGATRON_RANK_H
#define RESHARD_FORMATS_MEGATRON_MEGATRON_RANK_H

#include <limits.h>

#include "reshard/formats/megatron/megatron_args.h"
#include "reshard/formats/megatron/megatron_map.h"
#include "reshard/formats/torch/torch_pieces.h"

/* Matrices of several experts in one parameter, one after the other, each [in, out]. */
struct megatron_stack {
    int n; /* 0: the tensor is not one of these */
    int64_t in, out;
};

/* A parameter of a rank, in the order of its modules. */
struct megatron_rank_param {
    const char *name; /* Megatron's */
    int chunk;        /* of the model: with virtual stages a rank has several */
    int ndim;
    int64_t shape[2]; /* of the rank's tensor */
    struct megatron_rows *rows;
    int n_rows;
    bool shared;                 /* the embedding that the first and the last stage both have */
    bool expert;                 /* of an expert */
    struct megatron_stack stack; /* rows are then those of the first expert, of the second, ... */
};

struct megatron_rank {
    struct piece_source *source;
    struct megatron_map map; /* its arena lives as long as the source */
    char dir[PATH_MAX];      /* of the iteration */
    struct megatron_args args;
    int tp_rank, pp_rank;    /* its expert-parallel rank is map.ep_rank */
    enum megatron_part part; /* of the optimizer that is read */
    struct megatron_rank_param *params;
    int n_params;
};

/* "mp_rank_01_002_003/FILE" of the folder: tensor-parallel rank, and with more than one of them
 * stage and expert-parallel rank. */
tp_status megatron_rank_path(char path[PATH_MAX], const struct megatron_rank *r, const char *file,
                             struct tp_err *err);

/* Take over the sizes of r->args. TP_E_USAGE: the layers do not divide, or experts are cut over
 * another number of ranks than other layers. `path` is for messages. */
tp_status megatron_rank_stages(struct megatron_rank *r, const char *path, struct tp_err *err);

/* Find the parameters in the pickle of model_optim_rng.pt, and add the weights. */
tp_status megatron_rank_weights(struct megatron_rank *r, struct torch_pieces *x,
                                struct tp_err *err);

/* Add elements first .. first + n - 1 of a parameter of the rank, in row-major order. They lie in
 * p->file from p->begin on; p says group, type and sum. */
tp_status megatron_rank_add(struct megatron_rank *r, const struct megatron_rank_param *param,
                            const struct piece *p, int64_t first, int64_t n, struct tp_err *err);

/* Add all of a parameter of the rank; p is the tensor that has it, with its strides. */
tp_status megatron_rank_add_tensor(struct megatron_rank *r, const struct megatron_rank_param *param,
                                   const struct piece *p, struct tp_err *err);

/* Whether a name, without the layer, is weight1 or weight2 of Megatron-core's GroupedMLP
 * (--moe-grouped-gemm with local modules, --moe-use-legacy-grouped-gemm): the first or the second
 * matrices of all experts of a rank. Their shapes, [hidden, ...] and [..., hidden], mean
 * nothing. */
bool megatron_stacked_is(const char *name);

/* Fill in shape, stack and rows of p in layer `layer`. False: the model has no such experts, or
 * memory is out. */
bool megatron_stacked_find(struct megatron_rank_param *p, const struct megatron_rank *r,
                           const char *name, int layer);

/* As megatron_rank_add, for such a parameter. */
tp_status megatron_stacked_add(struct megatron_rank *r, const struct megatron_rank_param *param,
                               const struct piece *p, int64_t first, int64_t n, struct tp_err *err);

/* Whether the rank's tensor has the rows that were found, and as many columns. */
bool megatron_rank_fits(const struct megatron_rank *r, const struct megatron_rank_param *p);

/* Elements of a parameter on its rank. */
int64_t megatron_rank_elements(const struct megatron_rank_param *param);

/* Add what model_optim_rng.pt has of the ordinary optimizer, if anything. */
tp_status megatron_optimizer_add(struct megatron_rank *r, struct torch_pieces *x,
                                 struct tp_err *err);

/* Add the flat buffers of the distributed optimizer of r->part that `root` has: one for each model
 * chunk with such parameters, with all of its buckets. */
tp_status megatron_optimizer_add_buffers(struct megatron_rank *r, struct torch_pieces *x,
                                         const struct pickle_value *root, struct tp_err *err);

/* Add distrib_optim.pt, if there is one. */
tp_status megatron_optimizer_add_distributed(struct megatron_rank *r, struct tp_err *err);

#endif
