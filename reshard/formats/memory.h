/*
 * reshard/formats/memory.h - boxes in this process's memory as a source or a target of the engine.
 */
#ifndef RESHARD_FORMATS_MEMORY_H
#define RESHARD_FORMATS_MEMORY_H

#include "reshard/engine/transfer.h"

struct memory_endpoint {
    const struct reshard_extent *extents; /* [n], borrowed */
    const enum dtype *dtypes;             /* [n_tensors], borrowed */
    void *const *data;                    /* [n]: each extent's elements, row-major; borrowed */
    int n;
};

/* A endpoint over mp, which outlives it. Set `what` yourself. */
struct reshard_endpoint memory_endpoint_make(struct memory_endpoint *mp);

#endif
