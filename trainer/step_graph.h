/*
 * trainer/step_graph.h - how a step is queued: operation by operation, or as a graph that was
 * recorded once (device/device.h). The first STEP_GRAPH_FIRST steps are queued, because in them
 * libraries allocate and choose; then one is recorded, and from there on it is replayed.
 */
#ifndef TRAINER_STEP_GRAPH_H
#define TRAINER_STEP_GRAPH_H

#include "device/device.h"

enum { STEP_GRAPH_FIRST = 2 };

enum step_graph_mode { STEP_GRAPH_QUEUE, STEP_GRAPH_RECORD, STEP_GRAPH_REPLAY };

struct step_graph {
    const char *why_not; /* steps are not recorded; NULL: they are */
    int n_queued;        /* steps of this run that were queued */
    bool copying; /* a rank may still copy its state for a checkpoint: the update waits for it,
                     which a graph cannot. The same on all ranks, because NCCL wants a
                     collective to be in a graph on all of them or on none */
    struct device_graph *graph;
};

/* What decides whether steps are recorded. */
struct step_graph_request {
    const struct device *device;
    bool wanted;      /* --cuda-graphs */
    bool has_experts; /* the host reads in a step how many rows each expert has */
};

/* Free with step_graph_close. */
void step_graph_init(struct step_graph *g, const struct step_graph_request *r);
void step_graph_close(struct step_graph *g, struct device *d); /* NULL graph: does nothing */

/* How the next step is queued. */
enum step_graph_mode step_graph_next(struct step_graph *g);

#endif
