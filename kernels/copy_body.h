/*
 * kernels/copy_body.h - the index arithmetic of copy_box, compiled as C (copy.c) and as CUDA
 * (copy.cu), so that what sanitizers see is what a GPU runs.
 *
 * A copy of a box is rows: runs of bytes that are contiguous on both sides, counted by at most
 * COPY_AXES outer axes. A worker takes rows first, first + step, first + 2 step, ...; the digits of
 * `step` are added to the row's index with carries, so there is one division an axis and worker,
 * none a row or an element.
 */
#ifndef KERNELS_COPY_BODY_H
#define KERNELS_COPY_BODY_H

#include <stdint.h>

#include "layout/box.h"

#ifdef __CUDACC__
#define COPY_FN static inline __host__ __device__
#else
#define COPY_FN static inline __attribute__((unused))
#endif

enum { COPY_AXES = BOX_NDIM_MAX };

/* Offsets, strides and run in bytes. Axis 0 varies fastest. */
struct copy_rows {
    int64_t dst_offset, src_offset;
    int64_t run_bytes;
    int64_t n_rows; /* product of count; 0: nothing to copy */
    int n_axes;
    int64_t count[COPY_AXES], dst_stride[COPY_AXES], src_stride[COPY_AXES];
};

/* Where a worker stands. */
struct copy_cursor {
    int64_t row, step;
    int64_t dst, src; /* byte offsets of the row */
    int64_t index[COPY_AXES], digit[COPY_AXES];
};

/* Reduce a copy of `region` to rows: an axis joins the run, or the axis inside it, when it
 * continues it without a gap on both sides. */
COPY_FN void copy_rows_make(struct copy_rows *r, const struct box *dst_box,
                            const struct box *src_box, const struct box *region, int elem_bytes)
{
    int64_t dst_pitch = elem_bytes, src_pitch = elem_bytes;

    r->dst_offset = r->src_offset = 0;
    r->run_bytes = elem_bytes;
    r->n_rows = 1;
    r->n_axes = 0;
    for (int d = region->ndim - 1; d >= 0; d--) {
        int64_t n = region->len[d];
        int a = r->n_axes - 1;
        int64_t dst_next = a < 0 ? r->run_bytes : r->dst_stride[a] * r->count[a];
        int64_t src_next = a < 0 ? r->run_bytes : r->src_stride[a] * r->count[a];

        r->dst_offset += (region->lo[d] - dst_box->lo[d]) * dst_pitch;
        r->src_offset += (region->lo[d] - src_box->lo[d]) * src_pitch;
        if (n != 1) {
            if (dst_pitch == dst_next && src_pitch == src_next) {
                if (a < 0)
                    r->run_bytes *= n;
                else
                    r->count[a] *= n;
            } else {
                r->count[r->n_axes] = n;
                r->dst_stride[r->n_axes] = dst_pitch;
                r->src_stride[r->n_axes] = src_pitch;
                r->n_axes++;
            }
        }
        dst_pitch *= dst_box->len[d];
        src_pitch *= src_box->len[d];
    }
    for (int a = 0; a < r->n_axes; a++)
        r->n_rows *= r->count[a];
    if (r->run_bytes == 0)
        r->n_rows = 0;
}

/* Stand at row `first`, to go on by `step` rows at a time. */
COPY_FN void copy_cursor_begin(struct copy_cursor *c, const struct copy_rows *r, int64_t first,
                               int64_t step)
{
    int64_t row = first, left = step;

    c->row = first;
    c->step = step;
    c->dst = r->dst_offset;
    c->src = r->src_offset;
    for (int a = 0; a < r->n_axes && first < r->n_rows; a++) {
        c->index[a] = row % r->count[a];
        c->digit[a] = left % r->count[a];
        row /= r->count[a];
        left /= r->count[a];
        c->dst += c->index[a] * r->dst_stride[a];
        c->src += c->index[a] * r->src_stride[a];
    }
}

/* Go on by `step` rows; c->row >= r->n_rows means the end. */
COPY_FN void copy_cursor_next(struct copy_cursor *c, const struct copy_rows *r)
{
    int carry = 0;

    c->row += c->step;
    for (int a = 0; a < r->n_axes; a++) {
        int64_t move = c->digit[a] + carry;
        int64_t index = c->index[a] + move;

        carry = index >= r->count[a];
        if (carry) {
            index -= r->count[a];
            move -= r->count[a];
        }
        c->index[a] = index;
        c->dst += move * r->dst_stride[a];
        c->src += move * r->src_stride[a];
    }
}

#endif
