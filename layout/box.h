/*
 * layout/box.h - an axis-aligned region of a tensor: offset and extent on every axis.
 * Pure arithmetic: no I/O, no allocation. Offsets and lengths are in elements; a box of a tensor is
 * stored row-major (last axis fastest), without gaps.
 */
#ifndef LAYOUT_BOX_H
#define LAYOUT_BOX_H

#include <stdbool.h>
#include <stdint.h>

enum { BOX_NDIM_MAX = 6, BOX_TEXT_MAX = 192 };

struct box {
    int ndim; /* 0 .. BOX_NDIM_MAX; 0 is a scalar: one element */
    int64_t lo[BOX_NDIM_MAX], len[BOX_NDIM_MAX];
};

/* The whole of a tensor of this shape. */
struct box box_whole(int ndim, const int64_t *shape);

/* Number of elements; 0 when any length is 0. Callers keep shapes under 2^62 elements. */
int64_t box_elements(const struct box *b);

bool box_is_empty(const struct box *b);
bool box_equal(const struct box *a, const struct box *b);

/* Whether every element of inner lies in outer. */
bool box_contains(const struct box *outer, const struct box *inner);

/* Meet of a and b, in *out; false (and *out unspecified) when they have no element in common. */
bool box_meet(struct box *out, const struct box *a, const struct box *b);

/* Where the first element of `inner` lies in the row-major storage of `outer`, in elements.
 * inner must be contained in outer. */
int64_t box_offset_in(const struct box *outer, const struct box *inner);

/* Whether `inner` is one contiguous run in the row-major storage of `outer`. */
bool box_is_run_in(const struct box *outer, const struct box *inner);

/* Cut b, row-major, into pieces of at most max_elements that are contiguous in its storage:
 * leading axes to single indices as far as needed, then one axis in ranges, trailing axes whole.
 * Piece number i in *out. */
int64_t box_run_count(const struct box *b, int64_t max_elements);
void box_run(struct box *out, const struct box *b, int64_t max_elements, int64_t i);

/* "[0:64, 128:256]", for messages and listings. Returns buf. */
char *box_format(char buf[BOX_TEXT_MAX], const struct box *b);

#endif
