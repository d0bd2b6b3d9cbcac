/*
 * kernels/copy_body.h - the index arithmetic of copy_box, compiled as C (copy.c) and as CUDA
 * (copy.cu), so sanitizers check the code that a GPU runs.
 *
 * A copy of a box is rows: runs of bytes that are contiguous on both sides, counted by at most
 * COPY_AXES outer axes. A worker takes rows first, first + step, first + 2 step, ...; the digits of
 * `step` are added to the row's index with carries. So there is one division for each axis and
 * worker, and none for a row or an element.
 */
#ifndef KERNELS_COPY_BODY_H
#define KERNELS_COPY_BODY_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#include "kernels/copy.h"
#include "layout/box.h"
#include "layout/dtype.h"
#ifdef __cplusplus
}
#endif

#ifdef __CUDACC__
#define COPY_FN static inline __host__ __device__
#else
#define COPY_FN static inline __attribute__((unused))
#endif
#define COPY_HOST static inline __attribute__((unused)) /* only for the host */

enum { COPY_AXES = BOX_NDIM_MAX + 1 }; /* one more for pieces of a run */

/* Offsets, strides and run in bytes; a run's bytes are those of the source, which differ from the
 * destination's where elements are converted. Axis 0 varies fastest. */
struct copy_rows {
    int64_t dst_offset, src_offset;
    int64_t run_bytes;
    int64_t last_bytes;             /* what is left of run_bytes at the last index of axis 0 */
    int64_t n_rows;                 /* product of count; 0: nothing to copy */
    int n_axes, dst_elem, src_elem; /* bytes of an element */
    int64_t count[COPY_AXES], dst_stride[COPY_AXES], src_stride[COPY_AXES];
};

/* The position of a worker. */
struct copy_cursor {
    int64_t row, step;
    int64_t dst, src, bytes; /* byte offsets of the row, and its length */
    int64_t index[COPY_AXES], digit[COPY_AXES];
};

/* Reduce a copy of `region` to rows: an axis joins the run, or the axis inside it, when it
 * continues it without a gap on both sides. dst_elem and src_elem: bytes of an element. */
COPY_FN void copy_rows_make_of(struct copy_rows *r, const struct box *dst_box,
                               const struct box *src_box, const struct box *region, int dst_elem,
                               int src_elem)
{
    int64_t dst_pitch = dst_elem, src_pitch = src_elem;

    r->dst_offset = r->src_offset = 0;
    r->dst_elem = dst_elem;
    r->src_elem = src_elem;
    r->run_bytes = src_elem;
    r->n_rows = 1;
    r->n_axes = 0;
    for (int d = region->ndim - 1; d >= 0; d--) {
        int64_t n = region->len[d];
        int a = r->n_axes - 1;
        int64_t dst_next =
            a < 0 ? r->run_bytes / src_elem * dst_elem : r->dst_stride[a] * r->count[a];
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
    if (r->run_bytes == 0 || r->n_rows == 0)
        r->n_rows = r->n_axes = 0; /* a cursor divides by lengths of axes: none may be 0 */
    r->last_bytes = r->run_bytes;
}

/* The same where both sides have elements of one size. */
COPY_FN void copy_rows_make(struct copy_rows *r, const struct box *dst_box,
                            const struct box *src_box, const struct box *region, int elem_bytes)
{
    copy_rows_make_of(r, dst_box, src_box, region, elem_bytes, elem_bytes);
}

/* Cut runs longer than piece_bytes (whole elements) into pieces, which become axis 0, so that few
 * long runs have work for many workers. */
COPY_FN void copy_rows_cut(struct copy_rows *r, int64_t piece_bytes)
{
    int64_t pieces = (r->run_bytes + piece_bytes - 1) / piece_bytes;

    if (pieces <= 1 || r->n_rows == 0)
        return;
    for (int a = r->n_axes; a > 0; a--) {
        r->count[a] = r->count[a - 1];
        r->dst_stride[a] = r->dst_stride[a - 1];
        r->src_stride[a] = r->src_stride[a - 1];
    }
    r->count[0] = pieces;
    r->src_stride[0] = piece_bytes;
    r->dst_stride[0] =
        r->dst_elem == r->src_elem ? piece_bytes : piece_bytes / r->src_elem * r->dst_elem;
    r->n_axes++;
    r->n_rows *= pieces;
    r->last_bytes = r->run_bytes - (pieces - 1) * piece_bytes;
    r->run_bytes = piece_bytes;
}

COPY_FN void copy_cursor_measure(struct copy_cursor *c, const struct copy_rows *r)
{
    int last = r->n_axes > 0 && c->index[0] == r->count[0] - 1;

    c->bytes = last ? r->last_bytes : r->run_bytes;
}

/* Start at row `first`; each copy_cursor_next advances by `step` rows. */
COPY_FN void copy_cursor_begin(struct copy_cursor *c, const struct copy_rows *r, int64_t first,
                               int64_t step)
{
    int64_t row = first, left = step;

    c->row = first;
    c->step = step;
    c->dst = r->dst_offset;
    c->src = r->src_offset;
    for (int a = 0; a < r->n_axes; a++) {
        c->index[a] = row % r->count[a];
        c->digit[a] = left % r->count[a];
        row /= r->count[a];
        left /= r->count[a];
        c->dst += c->index[a] * r->dst_stride[a];
        c->src += c->index[a] * r->src_stride[a];
    }
    copy_cursor_measure(c, r);
}

/* Advance by `step` rows; c->row >= r->n_rows means the end. */
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
    copy_cursor_measure(c, r);
}

/*
 * The rest is how a GPU walks through the rows; in C only tests use it. A group of `lanes` threads,
 * a power of two up to a warp, copies a row: narrow rows share a warp, a wide row has its own.
 */
enum { COPY_WARP = 32, COPY_WORD = 16, COPY_PIECE = 32 << 10, COPY_UNROLL = 4 };

/* One copy of a table of copies. */
struct copy_item {
    char *dst;
    const char *src;
    struct copy_rows rows;
    enum dtype dst_type, src_type; /* equal: bytes are copied */
    int lanes;                     /* threads for each row */
    int64_t first_warp; /* where its row 0 goes, so that small items spread over the device */
};

/* The copy of `region` between two boxes. The types are equal, or both are floating-point types;
 * storage that is converted is aligned to its elements. */
COPY_HOST void copy_item_make(struct copy_item *it, const struct copy_box *c, enum dtype dst_type,
                              enum dtype src_type)
{
    it->dst = (char *)c->dst;
    it->src = (const char *)c->src;
    it->dst_type = dst_type;
    it->src_type = src_type;
    copy_rows_make_of(&it->rows, &c->dst_box, &c->src_box, &c->region,
                      dst_type == src_type ? c->elem_bytes : dtype_bytes(dst_type),
                      dst_type == src_type ? c->elem_bytes : dtype_bytes(src_type));
    copy_rows_cut(&it->rows, COPY_PIECE);
    it->lanes = 1;
    while (it->lanes < COPY_WARP && it->lanes * COPY_WORD < it->rows.run_bytes)
        it->lanes *= 2;
    it->first_warp = 0;
}

/* Warps that an item needs when each of them copies once. */
COPY_HOST int64_t copy_item_warps(const struct copy_item *it)
{
    int64_t rows_a_warp = COPY_WARP / it->lanes;

    return (it->rows.n_rows + rows_a_warp - 1) / rows_a_warp;
}

/* Give the items of a table places next to each other, so that many small ones fill a device.
 * Returns how many warps have work. */
COPY_HOST int64_t copy_items_place(struct copy_item *items, int n_items)
{
    int64_t warp = 0;

    for (int i = 0; i < n_items; i++) {
        items[i].first_warp = warp;
        warp += copy_item_warps(&items[i]);
    }
    return warp;
}

/* Elements that may hold any type. The largest is one load instruction. */
typedef uint8_t copy_1 __attribute__((may_alias));
typedef uint16_t copy_2 __attribute__((may_alias));
typedef uint32_t copy_4 __attribute__((may_alias));
typedef uint64_t copy_8 __attribute__((may_alias));
typedef struct copy_16 {
    uint64_t low, high;
} __attribute__((may_alias, aligned(16))) copy_16;

/* Elements lane, lane + lanes, ... of n; COPY_UNROLL of them are loaded before any is stored. */
#define COPY_UNITS(type, dst, src, n)                                             \
    do {                                                                          \
        type *d_ = (type *)(dst);                                                 \
        const type *s_ = (const type *)(src);                                     \
        int64_t i_ = lane;                                                        \
        for (; i_ + (COPY_UNROLL - 1) * lanes < (n); i_ += COPY_UNROLL * lanes) { \
            type a_ = s_[i_], b_ = s_[i_ + lanes];                                \
            type c_ = s_[i_ + 2 * lanes], e_ = s_[i_ + 3 * lanes];                \
            d_[i_] = a_;                                                          \
            d_[i_ + lanes] = b_;                                                  \
            d_[i_ + 2 * lanes] = c_;                                              \
            d_[i_ + 3 * lanes] = e_;                                              \
        }                                                                         \
        for (; i_ < (n); i_ += lanes)                                             \
            d_[i_] = s_[i_];                                                      \
    } while (0)

/* One row, by lane number `lane` of `lanes`: in the widest unit in which both sides can be aligned
 * at once, after a few single bytes up to that alignment. */
COPY_FN void copy_run(char *dst, const char *src, int64_t bytes, int lane, int lanes)
{
    uintptr_t apart = ((uintptr_t)dst ^ (uintptr_t)src) | COPY_WORD;
    int64_t unit = (int64_t)(apart & (~apart + 1)); /* lowest bit: 1, 2, 4, 8 or 16 */
    int64_t head = (int64_t)((~(uintptr_t)dst + 1) & (uintptr_t)(unit - 1));
    int64_t n, tail;

    head = head < bytes ? head : bytes;
    n = (bytes - head) / unit; /* unit is a power of two: a shift */
    tail = head + n * unit;
    for (int64_t i = lane; i < head; i += lanes)
        dst[i] = src[i];
    switch (unit) {
    case 16:
        COPY_UNITS(copy_16, dst + head, src + head, n);
        break;
    case 8:
        COPY_UNITS(copy_8, dst + head, src + head, n);
        break;
    case 4:
        COPY_UNITS(copy_4, dst + head, src + head, n);
        break;
    case 2:
        COPY_UNITS(copy_2, dst + head, src + head, n);
        break;
    default:
        COPY_UNITS(copy_1, dst + head, src + head, n);
    }
    for (int64_t i = tail + lane; i < bytes; i += lanes)
        dst[i] = src[i];
}

/* Find the first row of thread `thread` of n_threads (a multiple of COPY_WARP). False: it has
 * none. */
COPY_FN int copy_item_begin(struct copy_cursor *c, const struct copy_item *it, int64_t thread,
                            int64_t n_threads)
{
    int64_t workers = n_threads / it->lanes;
    int64_t shift = it->first_warp % (n_threads / COPY_WARP) * (COPY_WARP / it->lanes);
    int64_t worker = thread / it->lanes - shift;

    worker += worker < 0 ? workers : 0;
    if (worker >= it->rows.n_rows)
        return 0;
    copy_cursor_begin(c, &it->rows, worker, workers);
    return 1;
}

/* Thread `thread` of n_threads does its part of an item that converts nothing. */
COPY_FN void copy_item_work(const struct copy_item *it, int64_t thread, int64_t n_threads)
{
    struct copy_cursor c;

    if (!copy_item_begin(&c, it, thread, n_threads))
        return;
    for (; c.row < it->rows.n_rows; copy_cursor_next(&c, &it->rows))
        copy_run(it->dst + c.dst, it->src + c.src, c.bytes, (int)(thread % it->lanes), it->lanes);
}

#endif
