/*
 * trainer/fold.h - gradients of a step's leaves added along a binary tree as they come: a binary
 * counter whose digits are spans. Leaf i is added to digit 0, that to digit 1, and so on while they
 * are set; 2^n leaves need n spans besides the one that gets the sum. What is set is added in one
 * pass over memory.
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
    float *sum; /* of all leaves, after the last of them */
    int levels; /* log2 of the leaves of a step */
    float *level[FOLD_LEVELS_MAX];
};

/* Take in x[r.n], leaf number `leaf` of a step's elements r. x may lie in f->sum, at its place. */
void fold_add(const struct fold *f, struct range r, int64_t leaf, const float *x);

/* The same tree for one number: level[k] gets the sum of 2^k leaves. */
void fold_add_double(double level[FOLD_LEVELS_MAX + 1], double x, int64_t leaf);

#endif
