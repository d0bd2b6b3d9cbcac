/*
 * kernels/cpu/copy_table_body.h - an item of a table of copies, whether it converts its elements or
 * not, compiled as C and as CUDA.
 */
#ifndef KERNELS_CPU_COPY_TABLE_BODY_H
#define KERNELS_CPU_COPY_TABLE_BODY_H

#include "kernels/copy_body.h"
#include "kernels/cpu/cast_body.h"

/* Thread `thread` of n_threads (a multiple of COPY_WARP) does its part of an item. */
COPY_FN void copy_table_work(const struct copy_item *it, int64_t thread, int64_t n_threads)
{
    struct copy_cursor c;

    if (it->dst_type == it->src_type) {
        copy_item_work(it, thread, n_threads);
        return;
    }
    if (!copy_item_begin(&c, it, thread, n_threads))
        return;
    for (; c.row < it->rows.n_rows; copy_cursor_next(&c, &it->rows))
        cast_run(it->dst + c.dst, it->dst_type, it->src + c.src, it->src_type,
                 c.bytes / it->rows.src_elem, (int)(thread % it->lanes), it->lanes);
}

#endif
