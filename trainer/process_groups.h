/*
 * trainer/process_groups.h - the communicators of a rank, one for each axis of the mesh that it
 * shares work along.
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
    struct comm_world *ranks;     /* borrowed, as the next two */
    struct comm_control *control; /* of all ranks: host memory */
    struct comm *world;           /* of all ranks: device memory */
    struct comm *tp;              /* ranks that hold the parts of one replica's layers */
    struct comm *dp;              /* ranks that hold the same parts and see other sequences */
    struct comm *cp; /* ranks that hold the same parts and see other tokens of the same sequences */
    struct comm *dp_cp;    /* all that hold the same parts, dp x cp: gradients are summed over them,
                                 beside what goes over cp; dp when cp is 1 */
    struct comm *cp_grads; /* cp once more, for gradients under ZeRO; NULL when cp is 1 */
    struct comm *model; /* ranks that together hold one replica, of all stages; tp when pp is 1 */
    struct comm *pp_dp_tp; /* ranks that together have every row that ZeRO partitions once: those of
                            equal cp; all ranks when cp is 1 */
    struct comm *pp_forward, *pp_backward; /* the stages of a pipeline: one way a channel. NULL when
                                              pp is 1, and so is the next */
    struct comm *embedding_ends;           /* first and last stage, on those; elsewhere NULL */
    struct comm *kv; /* tp ranks that hold the same KV heads; NULL when there is no sharing */
};

/* Collective over all ranks, whose device is d. The layout tells which tp ranks hold the same part
 * of the K and V projections. */
tp_status process_groups_make(struct process_groups *out, struct comm_world *ranks,
                              struct device *d, const struct layout *l, struct tp_err *err);
void process_groups_free(struct process_groups *p);

#endif
