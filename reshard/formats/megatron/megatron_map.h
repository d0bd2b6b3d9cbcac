/*
 * reshard/formats/megatron/megatron_map.h - where the rows of Megatron-LM's tensors are in the
 * model's tensors.
 *
 * Megatron fuses query, key and value by groups of key-value heads, fuses gate and up, pads the
 * vocabulary, and cuts all of them over tensor-parallel ranks.
 */
#ifndef RESHARD_FORMATS_MEGATRON_MAP_H
#define RESHARD_FORMATS_MEGATRON_MAP_H

#include "core/arena.h"
#include "core/err.h"
#include "layout/model.h"
#include "layout/tensor.h"

/* Rows of a rank's tensor that are rows of one tensor of the model. */
struct megatron_rows {
    const struct tensor *tensor;
    int64_t row, n; /* of the rank's tensor */
    int64_t to;     /* row of the model's tensor */
    int64_t column; /* of the model's tensor, at which the rank's columns begin */
};

struct megatron_map {
    const struct model *model;
    struct tensor *params; /* of the model */
    int n_params;
    int64_t tp, padded_vocab; /* of the checkpoint */
    struct arena *arena;
};

/* The parameters of m. TP_E_USAGE: a family whose matrices Megatron would transpose. */
tp_status megatron_map_make(struct megatron_map *out, const struct model *m, struct arena *arena,
                            struct tp_err *err);

enum megatron_found {
    MEGATRON_FOUND,
    MEGATRON_COPY,    /* another rank has the same, or it is the copy of a tied head */
    MEGATRON_UNKNOWN, /* the model has no such tensor */
};

/* The rows of tensor `name` ("self_attention.linear_qkv.weight", without the layer) of layer
 * `layer`, -1 outside of layers, on rank tp_rank: a list in the arena, or NULL when memory is out.
 * The shape of the rank's tensor is the caller's to compare. */
enum megatron_found megatron_map_find(struct megatron_rows **rows, int *n,
                                      const struct megatron_map *map, const char *name, int layer,
                                      int64_t tp_rank);

#endif
