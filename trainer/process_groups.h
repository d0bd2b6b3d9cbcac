/*
 * trainer/process_groups.h - the process groups of a rank: one for each axis of the mesh, and
 * some for several axes.
 */
#ifndef TRAINER_PROCESS_GROUPS_H
#define TRAINER_PROCESS_GROUPS_H

#include "comm/collective.h"
#include "comm/control.h"
#include "comm/world.h"
#include "layout/layout.h"

struct process_groups {
    struct spec spec;
    struct mesh_coord at;
    struct comm_world *ranks;     /* borrowed, like the next field */
    struct comm_control *control; /* all ranks; for host memory */
    struct comm *world;           /* all ranks; for device memory */
    struct comm *tp;              /* ranks that hold the parts of one replica's layers */
    struct comm *dp;              /* ranks that hold the same parts and train on other sequences */
    struct comm *cp;    /* ranks that hold the same parts and train on other tokens of a sequence */
    struct comm *dp_cp; /* all ranks that hold the same parts, dp x cp: without ZeRO gradients are
                           summed over them; dp when cp is 1 */
    struct comm *cp_grads; /* the ranks of cp in a second communicator, for gradients under ZeRO;
                              NULL when cp is 1 */
    struct comm *ep;       /* with ep: ranks of dp x cp that together have all experts; else NULL */
    struct comm *experts;  /* with ep: ranks that have the same experts, over which their gradients
                              are summed; else NULL */
    struct comm *model;    /* ranks of all stages that together hold one replica; tp when pp is 1 */
    struct comm *pp_dp_tp; /* ranks of equal cp: together they own every row that ZeRO partitions
                              once; all ranks when cp is 1 */
    struct comm *pp_forward, *pp_backward; /* the stages of a pipeline, a communicator for each
                                              direction; NULL when pp is 1, like the next field */
    struct comm *embedding_ends;           /* the first and the last stage; NULL on other stages */
    struct comm *kv; /* tp ranks that hold the same KV heads; NULL when each rank has its own */
};

/* Collective over all ranks; d is this rank's device, and t its transport (comm_use_device). By the
 * layout, some tp ranks may hold the same part of the K and V projections. */
tp_status process_groups_make(struct process_groups *out, struct comm_world *ranks,
                              struct device *d, const struct comm_transport *t,
                              const struct layout *l, struct tp_err *err);
void process_groups_free(struct process_groups *p);

#endif
