/*
 * kernels/copy.h - gather and split: copies of boxes between boxes. One source compiles as C and as
 * CUDA (kernels/copy_body.h), so sanitizers check the code that a GPU runs.
 */
#ifndef KERNELS_COPY_H
#define KERNELS_COPY_H

#include <stdint.h>

#include "layout/box.h"

/* Copy `region` from row-major storage of src_box to row-major storage of dst_box; both contain
 * it. elem_bytes: 1, 2, 4 or 8. src and dst do not overlap. */
struct copy_box {
    void *dst;
    const void *src;
    struct box dst_box, src_box, region;
    int elem_bytes;
};

/* The same without a queue: the calling thread does it at once, on host memory. */
void copy_box(void *dst, const struct box *dst_box, const void *src, const struct box *src_box,
              const struct box *region, int elem_bytes);

#endif
