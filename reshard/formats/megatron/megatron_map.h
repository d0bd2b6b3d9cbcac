/*
 * reshard/formats/megatron/megatron_map.h - where the rows of Megatron-LM's tensors are in the
 * model's tensors.
 *
 * Megatron fuses query, key and value by groups of key-value heads, fuses gate and up, pads the
 * vocabulary, and cuts all of them over tensor-parallel ranks. Its matrices are [out, in].
 */
#ifndef RESHARD_FORMATS_MEGATRON_MEGATRON_MAP_H
#define RESHARD_FORMATS_MEGATRON_MEGATRON_MAP_H

#include "core/arena.h"
#include "core/err.h"
#include "layout/model.h"
#include "layout/tensor.h"

/* Rows of a rank's tensor that are rows of one tensor of the model. */
struct megatron_rows {
    const struct tensor *tensor;
    int64_t row, n;  /* of the rank's tensor */
    int64_t to;      /* row of the model's tensor */
    int64_t column;  /* of the model's tensor, at which the rank's columns begin */
    bool transposed; /* the model's tensor is [in, out]: rows and columns are exchanged in it */
};

/* Columns column .. column + n - 1 of these rows, counted from the rank's first column, as a box of
 * the model's tensor. */
struct box megatron_rows_box(const struct megatron_rows *rows, int64_t column, int64_t n);

/* Columns that the model's tensor has for Megatron; 1 for a vector. */
int64_t megatron_rows_columns(const struct megatron_rows *rows);

struct megatron_map {
    const struct model *model;
    struct tensor *params; /* of the model */
    int n_params;
    int *first;               /* the tensor of each layer and role, counted from 1; 0: none */
    int64_t tp, padded_vocab; /* of the checkpoint */
    bool repeats_last_row;    /* rows of padding are found, each as the vocabulary's last row */
    int ep, ep_rank;          /* ranks that have different experts; whose names are asked for */
    int64_t expert_block;     /* rows of gate, then as many of up, in turn, in experts; 0: all of
                                 gate, then all of up */
    bool is_neox;             /* up is before gate, as in EleutherAI's GPT-NeoX */
    int64_t qkv_ranks;   /* ranks that each have their queries, then their keys, then their values;
                            0: groups of heads, one after the other */
    int64_t expert_cuts; /* ranks whose rows a tensor of torch_dist has; 1 in a rank's own */
    struct arena *arena;
};

/* How the names of an expert's tensors begin, without the layer. */
#define MEGATRON_EXPERTS "mlp.experts."
bool megatron_map_is_expert(const char *name);

/* The parameters of an optimizer: with expert parallelism Megatron has two, one without experts and
 * one for them. */
enum megatron_part { ALL_PARAMS, PARAMS_OF_LAYERS, PARAMS_OF_EXPERTS };

static inline bool megatron_part_has(enum megatron_part part, bool is_expert)
{
    return part == ALL_PARAMS || is_expert == (part == PARAMS_OF_EXPERTS);
}

/* Whether a tensor has the rows of the padded vocabulary. */
bool megatron_map_is_vocabulary(const char *name);

/* The parameters of m. */
tp_status megatron_map_make(struct megatron_map *out, const struct model *m, struct arena *arena,
                            struct tp_err *err);

enum megatron_found {
    MEGATRON_FOUND,
    MEGATRON_COPY,    /* another rank has the same, or it is the copy of a tied head */
    MEGATRON_UNKNOWN, /* the model has no such tensor */
};

/* The rows of tensor `name` ("self_attention.linear_qkv.weight", without the layer) of layer
 * `layer`, -1 outside of layers, on rank tp_rank: a list in the arena, or NULL when memory is out.
 * Experts are counted from the first one of map->ep_rank: "mlp.experts.local_experts.0.linear_fc1".
 * The shape of the rank's tensor is the caller's to compare. */
enum megatron_found megatron_map_find(struct megatron_rows **rows, int *n,
                                      const struct megatron_map *map, const char *name, int layer,
                                      int64_t tp_rank);

/* The same in files that have a head only where it is not tied. If config.json says that it is, it
 * is found too, as a tensor of the head's name with the rows of the embedding: it is not lost so,
 * and imports compare the two. */
enum megatron_found megatron_map_find_own(struct megatron_rows **rows, int *n,
                                          const struct megatron_map *map, const char *name,
                                          int layer, int64_t tp_rank);

#endif
