/*
 * trainer/fold.h - gradients of a step's leaves added along a binary tree as they come: a binary
 * counter whose digits are spans. Leaf i is added to digit 0, that to digit 1, and so on while they
 * are set; n leaves need log2 n spans besides the one that leaves are computed in, which has the
 * sum in the end. All digits are added in one pass over memory.
 */
#ifndef TRAINER_FOLD_H
#define TRAINER_FOLD_H

#include <stdint.h>

enum { FOLD_LEVELS_MAX = 24 };

/* Some elements of every span. */
struct range {
    int64_t at, n;
};

struct fold {
    float *grad; /* where a leaf is computed; after the last one, the sum */
    int levels;  /* log2 of the leaves of a step */
    float *level[FOLD_LEVELS_MAX];
};

/* Take in leaf number `leaf` of the step, of these elements; after that f->grad is free. */
void fold_add(const struct fold *f, struct range r, int64_t leaf);

/* The same tree for one number; level has one more element than there are levels and holds the sum
 * of 2^k leaves in level[k]. */
void fold_add_double(double level[FOLD_LEVELS_MAX + 1], double x, int64_t leaf);

#endif
