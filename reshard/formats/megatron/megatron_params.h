/*
 * reshard/formats/megatron/megatron_params.h - the tensors that a rank of Megatron-LM has, and
 * which rows of the model's tensors they are: for writing.
 */
#ifndef RESHARD_FORMATS_MEGATRON_MEGATRON_PARAMS_H
#define RESHARD_FORMATS_MEGATRON_MEGATRON_PARAMS_H

#include "layout/layout.h"
#include "reshard/formats/export_writer.h"
#include "reshard/formats/megatron/megatron_map.h"
#include "reshard/formats/torch/torch_target.h"

/* A model chunk of a rank. Sizes of the job are pp and vpp; tp is map->tp. Modules that are unknown
 * are Megatron-LM's own. */
struct megatron_chunk {
    int pp, vpp;
    int tp_rank, pp_rank, chunk;
    struct export_modules modules;
};

struct megatron_param {
    const char *name; /* Megatron's, with the number of the layer in its chunk; in the arena */
    int layer;        /* of the model; -1: outside of layers */
    int ndim;
    int64_t shape[2]; /* of the rank's tensor, with the padding of the vocabulary */
    struct megatron_rows *rows;
    int n_rows;
    bool linear; /* the weight of a linear layer */
    int expert;  /* of the model; -1: of none */
};

/* The parameters of a chunk in the order of Megatron's modules, in the map's arena, on the
 * expert-parallel rank map->ep_rank. TP_E_LAYOUT: tp, ep or the stages do not divide the model. */
tp_status megatron_params_list(struct megatron_param **params, int *n,
                               const struct megatron_map *map, const struct megatron_chunk *at,
                               struct tp_err *err);

/* These rows of a parameter lie in a storage from byte `at` of it on. `tensor` is the number of
 * their tensor in the target. */
tp_status megatron_params_place(struct torch_target *x, int storage, int tensor,
                                const struct megatron_param *p, const struct megatron_rows *rows,
                                int64_t at, struct tp_err *err);

/* The groups of tensors that Megatron has. */
enum megatron_group {
    MEGATRON_PARAM,
    MEGATRON_MASTER,
    MEGATRON_EXP_AVG,
    MEGATRON_EXP_AVG_SQ,
    MEGATRON_GROUPS,
};

/* Which tensors of a layout are the map's parameters. */
struct megatron_numbers {
    int *of; /* [parameters][MEGATRON_GROUPS] numbers in the layout; -1: there is none */
    bool has[MEGATRON_GROUPS];
};

/* Fill it in, in the map's arena. TP_E_USAGE: a group lacks a parameter, or there are moments
 * without masters, and the weights are not f32. `path` is for messages. */
tp_status megatron_params_number(struct megatron_numbers *out, const struct megatron_map *map,
                                 const struct layout *l, const char *path, struct tp_err *err);

/* TP_E_USAGE: one of the model's tensors is not a tensor of Megatron's, or its arguments cannot say
 * what the layers compute. */
tp_status megatron_params_check(const struct megatron_map *map, struct tp_err *err);

#endif
