/*
 * reshard/formats/verl/verl_tensor.h - a distributed tensor in a rank's file: a DTensor or a
 * ShardedTensor, its shape, and which box of it the rank has.
 */
#ifndef RESHARD_FORMATS_VERL_VERL_TENSOR_H
#define RESHARD_FORMATS_VERL_VERL_TENSOR_H

#include "reshard/formats/torch/torch_pieces.h"

enum { VERL_MESH_AXES_MAX = 4 };

/* The grid of ranks, row-major: (W), or of HSDP (replicas, shards). */
struct verl_mesh {
    const struct pickle_value *of; /* what was read; NULL: nothing yet */
    int ndim;
    int64_t size[VERL_MESH_AXES_MAX];
};

/* A rank's file. */
struct verl_rank {
    struct torch_pieces x;
    int rank, world;
    struct verl_mesh mesh; /* of its last DTensor */
};

struct verl_tensor {
    const struct pickle_value *local; /* the rank's part; NULL: it has none */
    int ndim;
    int64_t shape[BOX_NDIM_MAX];
    struct box box; /* what the part is */
    bool copy;      /* a rank before this one has the same box */
};

/* Whether a value is a distributed tensor. */
bool verl_tensor_is(const struct pickle_value *v);

/* Read one. `name` is for messages. TP_E_CORRUPT: it is not of this rank, or of another number of
 * ranks. TP_E_USAGE: its placements are not supported. */
tp_status verl_tensor_read(struct verl_tensor *out, struct verl_rank *r,
                           const struct pickle_value *v, const char *name, struct tp_err *err);

/* What is left of a box where `parts` ranks share its axis, as torch.chunk cuts it: the last parts
 * are shorter, or empty. */
void verl_tensor_cut(struct box *b, int axis, int64_t parts, int64_t part);

/* The axis of a DTensor that is cut; -1: none. */
int verl_tensor_axis(const struct pickle_value *v);

/* Make the rank's part a piece of `group`. Both texts are borrowed. TP_E_CORRUPT: it has another
 * shape than its box. */
tp_status verl_tensor_piece(struct piece *out, struct verl_rank *r, const struct verl_tensor *t,
                            const char *group, const char *name, struct tp_err *err);

#endif
