/*
 * reshard/formats/megatron/megatron_rank_target.h - what a rank of Megatron-LM gets, as it is
 * written: inside reshard/formats/megatron/ only. megatron_target.c writes the folders and the
 * weights, megatron_optimizer_target.c the ordinary optimizer, distributed_target.c the distributed
 * one.
 */
#ifndef RESHARD_FORMATS_MEGATRON_MEGATRON_RANK_TARGET_H
#define RESHARD_FORMATS_MEGATRON_MEGATRON_RANK_TARGET_H

#include "reshard/formats/export_writer.h"
#include "reshard/formats/megatron/megatron_args.h"
#include "reshard/formats/megatron/megatron_params.h"

/* Groups of an optimizer: matrices, which have weight decay, and vectors. Experts have no
 * vectors. */
static inline int megatron_part_groups(enum megatron_part part)
{
    return part == PARAMS_OF_EXPERTS ? 1 : 2;
}

struct megatron_target {
    const struct export_contents *q;
    struct piece_target *pieces;
    struct megatron_map map;
    struct megatron_numbers numbers;
    int pp, vpp;
    struct export_modules modules;
    struct megatron_args_vocab vocab;
    enum dtype gradients;         /* of the distributed optimizer */
    int64_t bucket_size, buckets; /* as in struct megatron_args */
};

/* What one rank has: the parameters of all its chunks, and the file that is being written. */
struct megatron_rank_target {
    struct megatron_target *t;
    struct torch_target x;
    struct megatron_param **params; /* [vpp] */
    int *n;                         /* [vpp] */
    int tp_rank, pp_rank;
    enum megatron_part part; /* of the optimizer that is being written */
};

/* Push a parameter's tensor of a group. */
tp_status megatron_rank_target_push(struct megatron_rank_target *r, const struct megatron_param *p,
                                    enum megatron_group group, struct tp_err *err);

/* Push the ordinary optimizer, with its tensors. */
tp_status megatron_optimizer_target_push(struct megatron_rank_target *r, struct tp_err *err);

/* Push what model_optim_rng.pt has of the distributed optimizer: its options and the step. */
void distributed_target_push(struct megatron_rank_target *r);

/* Push the whole of distrib_optim.pt: the flat buffers. */
tp_status distributed_target_push_buffers(struct megatron_rank_target *r, struct tp_err *err);

#endif
