/*
 * reshard/formats/memory.h - boxes in memory as an endpoint: of this process, or of a
 * device.
 */
#ifndef RESHARD_FORMATS_MEMORY_H
#define RESHARD_FORMATS_MEMORY_H

#include "device/staging.h"
#include "reshard/engine/endpoint.h"

struct memory_endpoint {
    const struct reshard_extent *extents; /* [n] borrowed */
    const enum dtype *dtypes;             /* [tensors] borrowed */
    void *const *data;                    /* [n] the elements of each extent, row-major; borrowed */
    int n;
    struct staging *staging; /* data is memory of the transfer's device, which writes most of it;
                                the rest is sent through this, by one thread. NULL: host memory.
                                Borrowed */
};

/* An endpoint over m, which must outlive it. Set its name yourself if messages need another. */
struct reshard_endpoint memory_endpoint_make(struct memory_endpoint *m);

#endif
