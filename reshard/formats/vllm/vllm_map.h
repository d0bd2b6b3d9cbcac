/*
 * reshard/formats/vllm/vllm_map.h - the tensors that a tensor-parallel rank of vLLM has, and which
 * boxes of the model's tensors they are.
 *
 * vLLM fuses query, key and value, and gate and up, each as blocks that are cut by themselves; pads
 * the vocabulary to a multiple of 64 with zeros; gives a key-value head to several ranks where
 * there are fewer heads than ranks; and has all matrices as [out, in].
 */
#ifndef RESHARD_FORMATS_VLLM_VLLM_MAP_H
#define RESHARD_FORMATS_VLLM_VLLM_MAP_H

#include "core/arena.h"
#include "core/err.h"
#include "layout/model.h"
#include "layout/tensor.h"

/* A box of one tensor of the model, and where it lies in the rank's tensor. */
struct vllm_part {
    const struct tensor *tensor;
    struct box box;
    int64_t at;      /* element of the rank's tensor at which it begins */
    int64_t stride;  /* elements of the rank's tensor from one output to the next one */
    bool transposed; /* the model's tensor is [in, out] */
    bool copy;       /* a lower rank has the same box */
};

enum { VLLM_NDIM_MAX = 2 };

struct vllm_param {
    const char *name; /* vLLM's */
    int ndim;
    int64_t shape[VLLM_NDIM_MAX]; /* of the rank's tensor, with padding; 1 in axes that it lacks */
    struct vllm_part *parts;      /* what is in no part is zero */
    int n_parts; /* 0: a scale of attention, which is f32, has no axis, and is 1 where
                    nothing is quantized */
};

/* The rows that the vocabulary has with padding. */
int64_t vllm_map_padded_vocab(const struct model *m);

/* vLLM's name of the embedding, of which each rank has rows. */
const char *vllm_map_embedding(const struct model *m);

/* Whether a name is that, or the one that a tied embedding has where vLLM's model has no head, as
 * in earlier versions. */
bool vllm_map_is_embedding(const struct model *m, const char *name);

/* TP_E_USAGE: the names that vLLM gives to the tensors of such a model are not known. `path` is for
 * messages. */
tp_status vllm_map_check_model(const struct model *m, const char *path, struct tp_err *err);

/* A rank of tp ranks; `params` are what model_params makes of the model. All is borrowed. */
struct vllm_rank {
    const struct model *model;
    const struct tensor *params;
    int n_params, tp, tp_rank;
};

/* The tensors of a rank in the arena, scales first, each ascending by name. TP_E_LAYOUT: tp does
 * not divide the model. */
tp_status vllm_map_list(struct vllm_param **out, int *n, const struct vllm_rank *r,
                        struct arena *arena, struct tp_err *err);

/* The one with this name (vllm_map_is_embedding); NULL: there is none. */
const struct vllm_param *vllm_map_find(const struct vllm_param *list, int n, const struct model *m,
                                       const char *name);

#endif
