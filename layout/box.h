/*
 * layout/box.h - a box: a region of a tensor, with an offset and a length on every axis.
 *
 * Offsets and lengths are numbers of elements. A box is stored row-major (the last axis fastest)
 * and without gaps. Pure arithmetic: no I/O, no allocation.
 */
#ifndef LAYOUT_BOX_H
#define LAYOUT_BOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BOX_NDIM_MAX = 6, BOX_TEXT_MAX = 192 };

struct box {
    int ndim; /* 0 .. BOX_NDIM_MAX; 0 is a scalar, which has one element */
    int64_t lo[BOX_NDIM_MAX], len[BOX_NDIM_MAX];
};

/* The box of a whole tensor. */
struct box box_whole(int ndim, const int64_t *shape);

/* Number of elements; 0 when a length is 0. Shapes have fewer than 2^62 elements. */
int64_t box_elements(const struct box *b);

/* Whether a length is 0; whether ndim, lo and len are the same. */
bool box_is_empty(const struct box *b);
bool box_equal(const struct box *a, const struct box *b);

/* Whether every element of inner is in outer. */
bool box_contains(const struct box *outer, const struct box *inner);

/* The intersection of a and b. False, and *out is not specified: it is empty. */
bool box_meet(struct box *out, const struct box *a, const struct box *b);

/* The position of inner's first element in the storage of outer, which contains inner. */
int64_t box_offset_in(const struct box *outer, const struct box *inner);

/* Whether inner is one contiguous run of elements in the storage of outer. */
bool box_is_run_in(const struct box *outer, const struct box *inner);

/* Cut b into runs: pieces of at most max_elements that are contiguous in its storage, in storage
 * order. In a run, leading axes have length 1, one axis is a range, and later axes are whole.
 * box_run gives run number i. */
int64_t box_run_count(const struct box *b, int64_t max_elements);
void box_run(struct box *out, const struct box *b, int64_t max_elements, int64_t i);

/* Write "[0:64, 128:256]" to buf. Returns buf. */
char *box_format(char buf[BOX_TEXT_MAX], const struct box *b);

/* Write a shape, or other numbers of each axis, to buf of size bytes: "[64, 256]". Returns buf. */
char *box_format_shape(char *buf, size_t size, int ndim, const int64_t *shape);

#endif
