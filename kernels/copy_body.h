/*
 * kernels/copy_body.h - the index arithmetic of copy_box, compiled as C (copy.c) and as CUDA
 * (copy.cu), so sanitizers check the code that a GPU runs.
 *
 * A copy of a box is rows: runs of bytes that are contiguous on both sides, counted by at most
 * COPY_AXES outer axes. A processor walks through them with a cursor: it takes rows first, first +
 * step, first + 2 step, ..., and the digits of `step` are added to the row's index with carries. So
 * there is one division for each axis and worker, and none for a row or an element. A GPU's thread
 * copies 64 bytes and more of a row at a time, which hides a division for each axis but one, and
 * arrays of digits would not fit into its registers.
 */
#ifndef KERNELS_COPY_BODY_H
#define KERNELS_COPY_BODY_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

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

/* Row `row`, without a cursor: its byte offsets. Returns its length. */
COPY_FN int copy_rows_at(const struct copy_rows *r, int64_t row, int64_t *dst, int64_t *src)
{
    uint64_t left = (uint64_t)row;
    int64_t bytes = r->run_bytes;

    *dst = r->dst_offset;
    *src = r->src_offset;
    for (int a = 0; a < r->n_axes; a++) {
        uint64_t n = (uint64_t)r->count[a];
        uint64_t up = a + 1 < r->n_axes ? left / n : 0;
        int64_t index = (int64_t)(left - up * n);

        if (a == 0 && index == r->count[0] - 1)
            bytes = r->last_bytes;
        *dst += index * r->dst_stride[a];
        *src += index * r->src_stride[a];
        left = up;
    }
    return (int)bytes;
}

/*
 * The rest is how a GPU copies; in C only tests use it. A group of `lanes` threads, a power of two
 * up to a warp, copies a row of at most COPY_PIECE bytes; the other groups of the warp copy the
 * rows after it.
 *
 * Each thread loads COPY_FLIGHT bytes before it stores any, but in at most COPY_LOADS units, whose
 * addresses need registers. So the 1024 threads of a processor have 64 KiB in flight, and 32 KiB if
 * units have 4 bytes. A group is no wider than its row needs for that.
 */
enum { COPY_WARP = 32, COPY_WORD = 16, COPY_PIECE = 8 << 10, COPY_FLIGHT = 64, COPY_LOADS = 8 };

/* How many loads of so many bytes a thread has in flight. */
#define COPY_TOGETHER(bytes) \
    (COPY_FLIGHT / (int)(bytes) < COPY_LOADS ? COPY_FLIGHT / (int)(bytes) : COPY_LOADS)

/* One copy of a table of copies. */
struct copy_item {
    char *dst;
    const char *src;
    struct copy_rows rows;
    enum dtype dst_type, src_type; /* equal: bytes are copied */
    int unit;           /* of a load: bytes, or elements that are converted; a power of two */
    int lanes;          /* threads for each row */
    int rows_a_warp;    /* COPY_WARP / lanes */
    int64_t first_warp; /* of the table's warps, the one that has row 0 */
};

/* The lowest bit of x, at most COPY_WORD. */
COPY_HOST int copy_lowest_bit(uint64_t x)
{
    x |= COPY_WORD;
    return (int)(x & (~x + 1));
}

/* Bytes of the widest unit in which all rows can be copied: both sides of each are aligned to it
 * at once, after the same few bytes. */
COPY_HOST int copy_unit(const struct copy_item *it)
{
    const struct copy_rows *r = &it->rows;
    uint64_t apart = (uint64_t)((uintptr_t)it->dst - (uintptr_t)it->src) +
                     (uint64_t)(r->dst_offset - r->src_offset);

    for (int a = 0; a < r->n_axes; a++)
        apart |= (uint64_t)(r->dst_stride[a] - r->src_stride[a]);
    return copy_lowest_bit(apart);
}

/* Elements that are converted at once: as many as 16 bytes of the wider type have, if all rows of
 * both sides are aligned to that; else 1. */
COPY_HOST int copy_cast_unit(const struct copy_item *it)
{
    const struct copy_rows *r = &it->rows;
    const int wider = r->dst_elem > r->src_elem ? r->dst_elem : r->src_elem;
    const int n = COPY_WORD / wider;
    uint64_t dst = (uint64_t)(uintptr_t)it->dst + (uint64_t)r->dst_offset;
    uint64_t src = (uint64_t)(uintptr_t)it->src + (uint64_t)r->src_offset;

    for (int a = 0; a < r->n_axes; a++) {
        dst |= (uint64_t)r->dst_stride[a];
        src |= (uint64_t)r->src_stride[a];
    }
    return copy_lowest_bit(dst) >= n * r->dst_elem && copy_lowest_bit(src) >= n * r->src_elem ? n
                                                                                              : 1;
}

/* Choose the units and the threads of a row: enough that a load has 64 bytes of the row, and a
 * store a sector of 32, and then enough that no thread has more than it loads at once. */
COPY_HOST void copy_item_share(struct copy_item *it)
{
    const bool is_copy = it->dst_type == it->src_type;
    int dst, src, flight;

    it->unit = is_copy ? copy_unit(it) : copy_cast_unit(it);
    dst = is_copy ? it->unit : it->unit * it->rows.dst_elem;
    src = is_copy ? it->unit : it->unit * it->rows.src_elem;
    flight = COPY_TOGETHER(src) * src;
    it->lanes = 1;
    while (
        it->lanes < COPY_WARP && it->lanes * src < it->rows.run_bytes &&
        (it->lanes * src < 64 || it->lanes * dst < 32 || it->lanes * flight < it->rows.run_bytes))
        it->lanes *= 2;
    it->rows_a_warp = COPY_WARP / it->lanes;
}

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
    copy_item_share(it);
    it->first_warp = 0;
}

/* Warps that an item needs when each of them copies once. */
COPY_FN int64_t copy_item_warps(const struct copy_item *it)
{
    return (it->rows.n_rows + it->rows_a_warp - 1) / it->rows_a_warp;
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

/* The item of warp number `warp` of a table; it is not before item `from`. */
COPY_FN int copy_items_find(const struct copy_item *items, int n_items, int from, int64_t warp)
{
    int end = n_items;

    if (from + 1 == n_items || warp < items[from + 1].first_warp)
        return from;
    while (end - from > 1) {
        int middle = from + (end - from) / 2;

        if (items[middle].first_warp <= warp)
            from = middle;
        else
            end = middle;
    }
    return from;
}

/* Elements that may hold any type. The largest is one load instruction. */
typedef uint8_t copy_1 __attribute__((may_alias));
typedef uint16_t copy_2 __attribute__((may_alias));
typedef uint32_t copy_4 __attribute__((may_alias));
typedef uint64_t copy_8 __attribute__((may_alias));
typedef struct copy_16 {
    uint64_t low, high;
} __attribute__((may_alias, aligned(16))) copy_16;

/* COPY_EACH is a loop whose array becomes registers of a GPU. After COPY_OPAQUE(x), an int, a GPU's
 * compiler computes products of x where they are needed: those of all loops, computed before the
 * first, do not fit into registers. */
#ifdef __CUDA_ARCH__
#define COPY_EACH(k, n) _Pragma("unroll") for (int k = 0; k < (n); k++)
#define COPY_OPAQUE(x)  asm volatile("" : "+r"(x))
#else
#define COPY_EACH(k, n) for (int k = 0; k < (n); k++)
#define COPY_OPAQUE(x)  (void)(x)
#endif

/* Whole units of so many bytes: lane, lane + lanes, ... A row has at most COPY_PIECE bytes, so an
 * int counts them. x_ is cleared, because a register that may be undefined is never free. */
#define COPY_UNITS(type, dst, src, bytes)                   \
    do {                                                    \
        enum { most_ = COPY_TOGETHER(sizeof(type)) };       \
        type *d_ = (type *)(dst);                           \
        const type *s_ = (const type *)(src);               \
        const int n_ = (bytes) / (int)sizeof(type);         \
        int step_ = lanes;                                  \
        COPY_OPAQUE(step_);                                 \
        for (int i_ = lane; i_ < n_; i_ += most_ * step_) { \
            type x_[most_];                                 \
            memset(x_, 0, sizeof x_);                       \
            COPY_EACH(k_, most_)                            \
            {                                               \
                if (i_ + k_ * step_ < n_)                   \
                    x_[k_] = s_[i_ + k_ * step_];           \
            }                                               \
            COPY_EACH(k_, most_)                            \
            {                                               \
                if (i_ + k_ * step_ < n_)                   \
                    d_[i_ + k_ * step_] = x_[k_];           \
            }                                               \
        }                                                   \
    } while (0)

/* One row, by lane number `lane` of `lanes`, in units of so many bytes: before them a few single
 * bytes up to their alignment, and after them what is left. */
COPY_FN void copy_run(char *dst, const char *src, int bytes, int unit, int lane, int lanes)
{
    int head = (int)((~(uintptr_t)dst + 1) & (uintptr_t)(unit - 1)), tail;

    head = head < bytes ? head : bytes;
    tail = bytes - ((bytes - head) & (unit - 1));
    switch (unit) {
    case 16:
        COPY_UNITS(copy_16, dst + head, src + head, bytes - head);
        break;
    case 8:
        COPY_UNITS(copy_8, dst + head, src + head, bytes - head);
        break;
    case 4:
        COPY_UNITS(copy_4, dst + head, src + head, bytes - head);
        break;
    case 2:
        COPY_UNITS(copy_2, dst + head, src + head, bytes - head);
        break;
    default:
        COPY_UNITS(copy_1, dst + head, src + head, bytes - head);
    }
    for (int i = lane; i < head + bytes - tail; i += lanes) {
        int at = i < head ? i : i - head + tail;

        dst[at] = src[at];
    }
}

/* What a thread copies of an item. */
struct copy_part {
    char *dst;
    const char *src;
    int bytes, lane; /* bytes: 0, if it has no row */
};

/* The part of lane `lane` of the item's warp number `warp`. */
COPY_FN struct copy_part copy_item_part(const struct copy_item *it, int64_t warp, int lane)
{
    const int64_t row = warp * it->rows_a_warp + lane * it->rows_a_warp / COPY_WARP;
    struct copy_part p = { it->dst, it->src, 0, lane & (it->lanes - 1) };
    int64_t dst, src;

    if (row < it->rows.n_rows) {
        p.bytes = copy_rows_at(&it->rows, row, &dst, &src);
        p.dst += dst;
        p.src += src;
    }
    return p;
}

/* A thread does its part of an item that converts nothing. */
COPY_FN void copy_item_work(const struct copy_item *it, int64_t warp, int lane)
{
    const struct copy_part p = copy_item_part(it, warp, lane);

    copy_run(p.dst, p.src, p.bytes, it->unit, p.lane, it->lanes);
}

#endif
