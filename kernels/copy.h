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

/* Many copies at once: items of kernels/copy_body.h, in device memory, made by copy_item_make and
 * copy_items_place. An item may convert its elements, as kernels/cast.h does. The table stays until
 * the operation is done; no destination overlaps another or a source. */
struct copy_item;
struct copy_table {
    const struct copy_item *items;
    int n_items;
    int64_t warps; /* as copy_items_place returned */
};

/* copy_box without a queue: the calling thread does it at once, on host memory. */
void copy_box(void *dst, const struct box *dst_box, const void *src, const struct box *src_box,
              const struct box *region, int elem_bytes);

#endif
