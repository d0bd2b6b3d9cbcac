/*
 * ckpt/digest.c - see ckpt/digest.h.
 *
 * Rows of consecutive elements are cut into blocks (ckpt/digest_block.h), and the sum of a block
 * is multiplied by the power at which the block starts. What is left of all rows behind their
 * blocks, or all of short rows, is summed at once.
 */
#include "ckpt/digest.h"

#include <stdio.h>

enum { POINTS = DIGEST_POINTS };

/* A walk over the rows of a box. */
struct digest_walk {
    const unsigned char *data; /* next row */
    const struct box *box;
    int elem_bytes;
    enum digest_variant variant;
    uint64_t step[BOX_NDIM_MAX][POINTS]; /* factor of each point for one index more on an axis */
    uint64_t block[POINTS];              /* the same for a block of elements */
    struct digest sum;
};

/* The sum of some rows, times the power at which the first one starts. */
static void add_rows(struct digest_walk *w, const struct digest_rows *rows,
                     const uint64_t start[POINTS])
{
    uint64_t sum[POINTS];

    digest_block_rows(sum, rows, w->variant);
    for (int p = 0; p < POINTS; p++)
        w->sum.d[p] = digest_mod_add(w->sum.d[p], digest_mod_multiply(sum[p], start[p]));
}

/* n_rows rows of n consecutive elements each; factor: of each point for one row more. */
static void walk_rows(struct digest_walk *w, int64_t n_rows, int64_t n,
                      const uint64_t factor[POINTS], const uint64_t start[POINTS])
{
    const int64_t blocks = n / DIGEST_BLOCK, row_bytes = n * w->elem_bytes;
    uint64_t power[POINTS] = { start[0], start[1] };
    struct digest_rows rows = { .n_rows = blocks,
                                .stride_bytes = (int64_t)DIGEST_BLOCK * w->elem_bytes,
                                .elem_bytes = w->elem_bytes,
                                .n = DIGEST_BLOCK,
                                .factor = { w->block[0], w->block[1] } };

    for (int64_t i = 0; i < n_rows && blocks > 0; i++) {
        rows.data = w->data + i * row_bytes;
        add_rows(w, &rows, power);
        for (int p = 0; p < POINTS; p++)
            power[p] = digest_mod_multiply(power[p], factor[p]);
    }
    rows = (struct digest_rows){ .data = w->data + blocks * rows.stride_bytes,
                                 .n_rows = n_rows,
                                 .stride_bytes = row_bytes,
                                 .elem_bytes = w->elem_bytes,
                                 .n = (int)(n % DIGEST_BLOCK),
                                 .factor = { factor[0], factor[1] } };
    w->data += n_rows * row_bytes;
    if (rows.n == 0)
        return;
    for (int p = 0; p < POINTS; p++)
        power[p] =
            digest_mod_multiply(start[p], digest_power(p, (uint64_t)(blocks * DIGEST_BLOCK)));
    add_rows(w, &rows, power);
}

/* The elements of axes `axis` and later; from axis `last` on they are consecutive: `run`
 * elements. */
static void walk_axis(struct digest_walk *w, int axis, int last, int64_t run,
                      const uint64_t start[POINTS])
{
    uint64_t power[POINTS] = { start[0], start[1] };

    if (axis >= last) {
        walk_rows(w, 1, run, w->block, start);
        return;
    }
    if (axis == last - 1) {
        walk_rows(w, w->box->len[axis], run, w->step[axis], start);
        return;
    }
    for (int64_t i = 0; i < w->box->len[axis]; i++) {
        walk_axis(w, axis + 1, last, run, power);
        for (int p = 0; p < POINTS; p++)
            power[p] = digest_mod_multiply(power[p], w->step[axis][p]);
    }
}

/* Treat 8-byte elements as pairs of 4-byte elements: the last axis becomes twice as long. */
static void halve_elements(struct box *box, int64_t shape[BOX_NDIM_MAX])
{
    int last = box->ndim - 1;

    if (box->ndim == 0) {
        box->ndim = 1;
        box->lo[0] = 0;
        box->len[0] = shape[0] = 2;
        return;
    }
    box->lo[last] *= 2;
    box->len[last] *= 2;
    shape[last] *= 2;
}

struct digest digest_box_by(enum digest_variant variant, const void *data, const struct box *box,
                            int ndim, const int64_t *shape, int elem_bytes)
{
    struct box b = *box;
    struct digest_walk w = {
        .data = data, .box = &b, .elem_bytes = elem_bytes == 8 ? 4 : elem_bytes, .variant = variant
    };
    int64_t full[BOX_NDIM_MAX] = { 0 }, stride = 1, first = 0, run = 1;
    uint64_t start[POINTS];
    int last;

    if (box_is_empty(box))
        return w.sum;
    for (int d = 0; d < ndim; d++)
        full[d] = shape[d];
    if (elem_bytes == 8)
        halve_elements(&b, full);
    /* axes after `last` are whole, so a range on `last` is one run of consecutive elements */
    for (last = b.ndim - 1; last > 0 && b.len[last] == full[last]; last--)
        ;
    for (int d = b.ndim - 1; d >= 0; d--) {
        for (int p = 0; p < POINTS; p++)
            w.step[d][p] = digest_power(p, (uint64_t)stride);
        first += b.lo[d] * stride;
        stride *= full[d];
        if (d >= last)
            run *= b.len[d];
    }
    for (int p = 0; p < POINTS; p++) {
        start[p] = digest_power(p, (uint64_t)first);
        w.block[p] = digest_power(p, DIGEST_BLOCK);
    }
    walk_axis(&w, 0, last, run, start);
    return w.sum;
}

struct digest digest_box(const void *data, const struct box *box, int ndim, const int64_t *shape,
                         int elem_bytes)
{
    return digest_box_by(digest_variant_best(), data, box, ndim, shape, elem_bytes);
}

void digest_add(struct digest *sum, const struct digest *part)
{
    for (int p = 0; p < POINTS; p++)
        sum->d[p] = digest_mod_add(sum->d[p], part->d[p]);
}

char *digest_format(char buf[DIGEST_TEXT_MAX], const struct digest *d)
{
    snprintf(buf, DIGEST_TEXT_MAX, "%016llx%016llx", (unsigned long long)d->d[0],
             (unsigned long long)d->d[1]);
    return buf;
}
