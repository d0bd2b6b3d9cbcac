/*
 * reshard/formats/deepspeed/deepspeed_state.h - what a DeepSpeed folder says about its parameters:
 * inside reshard/formats/ only. deepspeed.c reads the model states, deepspeed_zero.c the partitions
 * of the optimizer, deepspeed_universal.c the folders of parameters.
 */
#ifndef RESHARD_FORMATS_DEEPSPEED_DEEPSPEED_STATE_H
#define RESHARD_FORMATS_DEEPSPEED_DEEPSPEED_STATE_H

#include <limits.h>

#include "reshard/formats/torch/torch_pieces.h"

/* A parameter; those that are trained are in the order of the flat buffers. */
struct deepspeed_state_param {
    const char *name, *plain; /* as it is stored, and without what torch.compile adds */
    int group;                /* of the optimizer */
    int ndim;
    int64_t shape[BOX_NDIM_MAX];
    int64_t done; /* elements that the ranks before have had (ZeRO-1, ZeRO-2) */
};

struct deepspeed_ranks;

struct deepspeed_state {
    struct piece_source *source;
    const struct model *model;          /* NULL: it is not known */
    char dir[PATH_MAX];                 /* of the tag */
    bool zero3, universal, is_parallel; /* is_parallel: model_parallel.c reads it */
    int dp, mp;                         /* sizes */
    const char *masters; /* the group of the flat f32 weights: GROUP_MASTER, or GROUP_PARAM when the
                            model is in f32 and they are all there is */
    struct deepspeed_ranks *parallel; /* of ranks that have parts of the parameters; NULL: each
                                        parameter is whole */
    int mp_rank;                      /* whose optimizer is read */
    int qkv_ranks; /* ranks that each have their queries, then their keys, then their values; 0:
                      groups of heads, or the names of the parameters say it */
    int64_t steps; /* global_steps; -1: it is not there */
    struct deepspeed_state_param *params;
    int n_params;
    struct deepspeed_state_param *frozen; /* of ZeRO-3: not trained, so not in the flat buffers */
    int n_frozen;
    struct deepspeed_state_param **by_name, **frozen_by_name; /* both lists, ascending */
};

/* Shapes that a file of model states has. */
struct deepspeed_shapes {
    struct deepspeed_state_param *list;
    int n;
};

/* Read `key` of the file, param_shapes or frozen_param_shapes. Names and list are in the arena. */
tp_status deepspeed_shapes_read(struct deepspeed_shapes *out, const struct torch_pieces *x,
                                const char *key, struct arena *arena, struct tp_err *err);

/* Take the list as that of the parameters that are trained; or that are not. TP_E_NOMEM. */
tp_status deepspeed_shapes_take(struct deepspeed_state *d, const struct deepspeed_shapes *params,
                                struct tp_err *err);
tp_status deepspeed_shapes_take_frozen(struct deepspeed_state *d,
                                       const struct deepspeed_shapes *frozen, struct tp_err *err);

/* A count, from 1 on; false: it is none. */
bool deepspeed_state_count(int *out, const struct pickle_value *root, const char *key);

/* Elements of a parameter, and how many of them each rank of ZeRO-3 has, padding included. */
int64_t deepspeed_state_elements(const struct deepspeed_state_param *p);
int64_t deepspeed_state_part(const struct deepspeed_state *d,
                             const struct deepspeed_state_param *p);

/* The parameter of this name that is trained, or that is not; NULL: there is none. */
struct deepspeed_state_param *deepspeed_state_find(const struct deepspeed_state *d,
                                                   const char *name);
struct deepspeed_state_param *deepspeed_state_find_frozen(const struct deepspeed_state *d,
                                                          const char *name);

/* A parameter as a piece of a group, whole; file, position and type are not set. */
struct piece deepspeed_state_piece(const struct deepspeed_state_param *param, const char *group);

/* Open file `name` of the tag. Close also after a failure. */
tp_status deepspeed_state_open(struct torch_pieces *x, const struct deepspeed_state *d,
                               const char *name, struct tp_err *err);

/* Add a rank's parts of the frozen parameters, from its model states. */
tp_status deepspeed_rank_add_frozen(struct deepspeed_state *d, struct torch_pieces *x, int rank,
                                    struct tp_err *err);

/* A number that all ranks' model states have as the first rank's, -1 where it is missing.
 * TP_E_CORRUPT: this file has another one. */
tp_status deepspeed_rank_check(const struct torch_pieces *x, const char *key, int64_t should,
                               struct tp_err *err);

/* Read the model states of a rank of ZeRO-3 after the first one, which must say the same as those
 * of the first. */
tp_status deepspeed_rank_read(struct deepspeed_state *d, int rank, struct tp_err *err);

/* A file `name` of rank `first` was not found: TP_E_NOTFOUND, which says which of its files and of
 * the following ranks' are missing too. */
tp_status deepspeed_zero_missing(const struct deepspeed_state *d, const char *name, int first,
                                 struct tp_err *err);

/* The name of a rank's model states, which only ZeRO-3 has for each rank. */
enum { DEEPSPEED_NAME_BYTES = 96 };
void deepspeed_rank_name(char name[DEEPSPEED_NAME_BYTES], int rank);

/* Whether a tag has a file of ZeRO's optimizer, that of the first rank. */
bool deepspeed_zero_is_in(const char *dir);

/* Add the partitions of all ranks; of several model-parallel ranks, those of d->mp_rank. */
tp_status deepspeed_zero_add(struct deepspeed_state *d, struct tp_err *err);

/* What the base optimizer of ZeRO has of group `g`: an entry of its "state", or with
 * "elastic_checkpoint" of a list. */
const struct pickle_value *deepspeed_zero_group(const struct pickle_value *base, int64_t g);

/* Whether the first or the last parameter has a folder zero/NAME with masters. */
bool deepspeed_universal_is_in(const struct deepspeed_state *d);

/* Add the folders zero/NAME. */
tp_status deepspeed_universal_add(struct deepspeed_state *d, struct tp_err *err);

#endif
