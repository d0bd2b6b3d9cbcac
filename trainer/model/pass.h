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
    int64_t sequences, rows; /* with cp only the rows that this rank has */
    int64_t residual_rows;   /* rows of the residual that this rank has: all, or with sp a part */
    float scale;             /* the weight of one row's loss in the step's loss */
    bool add; /* add gradients to those of earlier microbatches of the step (with --same-bits: of
                 the gradient group) */
    int64_t group;   /* --same-bits: the gradient group of this microbatch */
    bool ends_group; /* --same-bits: this microbatch is the group's last; else false */
    struct grad_reduction *reduction; /* in backward of the last microbatch: learns which gradients
                                         are final; else NULL */
};

#endif
