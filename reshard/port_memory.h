/*
 * reshard/port_memory.h - boxes in this process's memory as a source or a target of the engine.
 */
#ifndef RESHARD_PORT_MEMORY_H
#define RESHARD_PORT_MEMORY_H

#include "reshard/engine.h"

struct memory_port {
    const struct reshard_extent *regions; /* [n], borrowed */
    const enum dtype *dtypes;             /* [n_tensors], borrowed */
    void *const *data;                    /* [n]: each region's elements, row-major; borrowed */
    int n;
};

/* A port over mp, which outlives it. Set `what` yourself. */
struct reshard_endpoint memory_port_make(struct memory_port *mp);

#endif
