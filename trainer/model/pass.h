/*
 * trainer/model/pass.h - a pass of one microbatch through a rank's layers.
 */
#ifndef TRAINER_MODEL_PASS_H
#define TRAINER_MODEL_PASS_H

#include "trainer/model/network.h"
#include "trainer/sizing/activations.h"

struct grad_reduction; /* trainer/data_parallel/grad_reduction.h */
struct fsdp_units;     /* trainer/data_parallel/fsdp_units.h */

struct pass {
    const struct network *net;
    struct activations_scratch *scratch;
    struct fsdp_units *units;
    int64_t sequences, rows; /* with cp a sequence's rows are those that this rank has */
    int64_t residual_rows;   /* that this rank has of the residual: all, or with sp a part */
    bool add;                /* gradients add to those of the step's earlier microbatches (with
                                --same-bits: of the gradient group's) */
    int64_t group;           /* --same-bits: the gradient group of this microbatch */
    bool ends_group;         /* and whether this one is its last; false without */
    struct grad_reduction
        *reduction; /* backward of the last microbatch: told what is final; or NULL */
};

#endif
