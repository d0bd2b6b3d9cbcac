/*
 * ckpt/digest.c - see ckpt/digest.h.
 *
 * A run of consecutive elements is summed in blocks (ckpt/digest_block.h), and the sum of a block
 * is multiplied by the power at which the block starts.
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

static void walk_row(struct digest_walk *w, int64_t n, const uint64_t start[POINTS])
{
    uint64_t power[POINTS] = { start[0], start[1] };

    while (n > 0) {
        int part = n < DIGEST_BLOCK ? (int)n : DIGEST_BLOCK;
        uint64_t sum[POINTS];

        digest_block_sum(sum, w->data, w->elem_bytes, part, w->variant);
        for (int p = 0; p < POINTS; p++)
            w->sum.d[p] = digest_mod_add(w->sum.d[p], digest_mod_multiply(sum[p], power[p]));
        w->data += (size_t)part * (size_t)w->elem_bytes;
        n -= part;
        if (n > 0)
            for (int p = 0; p < POINTS; p++)
                power[p] = digest_mod_multiply(power[p], w->block[p]);
    }
}

/* The rows of axes `axis` and later; from axis `last` on, elements are consecutive. */
static void walk_axis(struct digest_walk *w, int axis, int last, int64_t run,
                      const uint64_t start[POINTS])
{
    uint64_t power[POINTS] = { start[0], start[1] };

    if (axis >= last || axis == BOX_NDIM_MAX - 1) { /* the second follows from the first */
        walk_row(w, run, start);
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
