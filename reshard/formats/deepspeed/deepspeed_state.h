/*
 * reshard/formats/deepspeed/deepspeed_state.h - what a DeepSpeed folder says about its parameters:
 * inside reshard/formats/ only. deepspeed.c reads the model states, deepspeed_zero.c the partitions
 * of the optimizer, deepspeed_universal.c the folders of parameters.
 */
#ifndef RESHARD_FORMATS_DEEPSPEED_DEEPSPEED_STATE_H
#define RESHARD_FORMATS_DEEPSPEED_DEEPSPEED_STATE_H

#include <limits.h>

#include "reshard/formats/torch/torch_pieces.h"

/* A parameter that is trained, in the order of the flat buffers. */
struct deepspeed_state_param {
    const char *name, *plain; /* as it is stored, and without what torch.compile adds */
    int group;                /* of the optimizer */
    int ndim;
    int64_t shape[BOX_NDIM_MAX];
    int64_t done; /* elements that the ranks before have had (ZeRO-1, ZeRO-2) */
};

struct deepspeed_state {
    struct piece_source *source;
    char dir[PATH_MAX]; /* of the tag */
    bool zero3, universal;
    int dp, mp;          /* sizes */
    const char *masters; /* the group of the flat f32 weights: GROUP_MASTER, or GROUP_PARAM when the
                            model is in f32 and they are all there is */
    struct deepspeed_state_param *params;
    int n_params;
};

/* The parameter of this name; NULL: there is none. */
struct deepspeed_state_param *deepspeed_state_find(const struct deepspeed_state *d,
                                                   const char *name);

/* A parameter as a piece of a group, whole; file, position and type are not set. */
struct piece deepspeed_state_piece(const struct deepspeed_state_param *param, const char *group);

/* Open file `name` of the tag. Close also after a failure. */
tp_status deepspeed_state_open(struct torch_pieces *x, const struct deepspeed_state *d,
                               const char *name, struct tp_err *err);

/* Add the partitions of all ranks. */
tp_status deepspeed_zero_add(struct deepspeed_state *d, struct tp_err *err);

/* Add the folders zero/NAME. */
tp_status deepspeed_universal_add(struct deepspeed_state *d, struct tp_err *err);

#endif
