/*
 * trainer/data_parallel/fsdp_units.h - zero3: weights that are gathered only while they are used
 * (Rajbhandari et al. 2020, ZeRO stage 3; Zhao et al. 2023, PyTorch FSDP).
 *
 * A rank keeps the rows that it owns. A unit (a layer, or what comes before or after the layers)
 * is gathered over dp into the buffer of unsharded weights before its forward pass and again
 * before its backward pass. Each microbatch's gradients of the unit are reduce-scattered to their
 * owners, which add them up. There is one buffer for unsharded weights and one for unsharded
 * gradients. Layers are bound to their places in these buffers once. A unit that is needed twice in
 * a row is gathered once.
 *
 * With ep a unit has two buckets: its experts are partitioned over other ranks than the rest.
 *
 * While one unit is computed, the weights of the next and the gradients of the previous one are
 * communicated. The next unit is known, because the passes of a step are a list
 * (trainer/pipeline/schedule.h).
 *
 * Without zero3 every call does nothing.
 */
#ifndef TRAINER_DATA_PARALLEL_FSDP_UNITS_H
#define TRAINER_DATA_PARALLEL_FSDP_UNITS_H

#include "core/arena.h"
#include "trainer/data_parallel/bucket_transfer.h"
#include "trainer/data_parallel/params.h"
#include "trainer/pipeline/schedule.h"

/* The pass that computed a unit's gradients. With a tied head on the embedding's stage, what comes
 * before the layers and what comes after them are one unit with two passes. */
enum fsdp_units_pass { FSDP_UNITS_BEFORE, FSDP_UNITS_LAYER, FSDP_UNITS_AFTER };

struct fsdp_units {
    const struct params *params;             /* borrowed, like the next two fields */
    struct bucket_transfer *weights, *grads; /* NULL until fsdp_units_open */
    int n_visits;
    int *visits; /* units, each by its first bucket of params, in the order in which a step gathers
                    them */
    int next;    /* the next visit; n_visits: no unit is gathered in advance */
    int held;    /* the unit whose weights are in the buffer, -1: none */
    int coming;  /* the unit whose weights are being sent, -1: none */
    int leaving; /* the unit whose gradients are being sent, -1: none */
    enum fsdp_units_pass leaving_pass;
    int64_t leaving_group;
};

/* The units of one of the rank's virtual stages. */
struct fsdp_units_stage {
    const int *layers; /* [n] */
    int n;
    int before, after; /* the units before and after the layers; -1: the stage has none */
};

/* List the units that a rank gathers in a step whose passes are `ops`. */
tp_status fsdp_units_init(struct fsdp_units *u, const struct params *p,
                          const struct fsdp_units_stage *stages, const struct schedule_rank *ops,
                          struct arena *arena, struct tp_err *err);

/* The transfers that gather weights and reduce gradients; borrowed. */
void fsdp_units_open(struct fsdp_units *u, struct bucket_transfer *weights,
                     struct bucket_transfer *grads);

/* A step begins: weights have changed, and no gradient has been summed. Collective over dp, like
 * the functions below. */
void fsdp_units_begin(struct fsdp_units *u);

/* Work that is queued after this call finds the weights of this unit in the buffer. unit: as
 * params_unit has it; -1 only without zero3. */
void fsdp_units_need(struct fsdp_units *u, int unit);

/* Before a unit's backward pass: zero the gradients that kernels only add to. */
void fsdp_units_clear(const struct fsdp_units *u, int unit);

/* After a unit's backward pass: send the gradients to their owners. group: with --same-bits the
 * number of the gradient group, else not used. */
void fsdp_units_reduce(struct fsdp_units *u, int unit, enum fsdp_units_pass pass, int64_t group);

/* After the last pass of a step: the gradients that this rank owns are complete. */
void fsdp_units_end(struct fsdp_units *u);

#endif
