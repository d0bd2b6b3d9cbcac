/*
 * reshard/formats/megatron/megatron_rank.h - what one rank of Megatron-LM saved: inside
 * reshard/formats/ only. megatron.c finds the ranks, megatron_rank.c reads the weights of one,
 * megatron_optimizer.c the state of its optimizer.
 */
#ifndef RESHARD_FORMATS_MEGATRON_RANK_H
#define RESHARD_FORMATS_MEGATRON_RANK_H

#include <limits.h>

#include "reshard/formats/megatron/megatron_args.h"
#include "reshard/formats/megatron/megatron_map.h"
#include "reshard/formats/torch/torch_pieces.h"

/* A parameter of a rank, in the order of its modules. */
struct megatron_rank_param {
    const char *name; /* Megatron's */
    int chunk;        /* of the model: with virtual stages a rank has several */
    int ndim;
    int64_t shape[2]; /* of the rank's tensor */
    struct megatron_rows *rows;
    int n_rows;
    bool shared; /* the embedding that the first and the last stage both have */
};

struct megatron_rank {
    struct piece_source *source;
    struct megatron_map map; /* its arena lives as long as the source */
    char dir[PATH_MAX];      /* of the iteration */
    struct megatron_args args;
    int tp_rank, pp_rank;
    struct megatron_rank_param *params;
    int n_params;
};

/* "mp_rank_01_002/FILE" of the folder. */
tp_status megatron_rank_path(char path[PATH_MAX], const struct megatron_rank *r, const char *file,
                             struct tp_err *err);

/* Take over the sizes of r->args. TP_E_USAGE: the layers do not divide. `path` is for messages. */
tp_status megatron_rank_stages(struct megatron_rank *r, const char *path, struct tp_err *err);

/* Find the parameters in the pickle of model_optim_rng.pt, and add the weights. */
tp_status megatron_rank_weights(struct megatron_rank *r, struct torch_pieces *x,
                                struct tp_err *err);

/* Add elements first .. first + n - 1 of a parameter of the rank, in row-major order. They lie in
 * p->file from p->begin on; p says group, type and sum. */
tp_status megatron_rank_add(struct megatron_rank *r, const struct megatron_rank_param *param,
                            const struct piece *p, int64_t first, int64_t n, struct tp_err *err);

/* Elements of a parameter on its rank. */
int64_t megatron_rank_elements(const struct megatron_rank_param *param);

/* Add what model_optim_rng.pt has of the ordinary optimizer, if anything. */
tp_status megatron_optimizer_add(struct megatron_rank *r, struct torch_pieces *x,
                                 struct tp_err *err);

/* Add the flat buffers of the distributed optimizer that `root` has: one for each model chunk, with
 * all of its buckets. */
tp_status megatron_optimizer_add_buffers(struct megatron_rank *r, struct torch_pieces *x,
                                         const struct pickle_value *root, struct tp_err *err);

/* Add distrib_optim.pt, if there is one. */
tp_status megatron_optimizer_add_distributed(struct megatron_rank *r, struct tp_err *err);

#endif
