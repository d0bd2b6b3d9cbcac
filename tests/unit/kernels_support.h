/*
 * tests/unit/kernels_support.h - arrays and comparisons that the kernels' tests share.
 */
#ifndef TESTS_UNIT_KERNELS_SUPPORT_H
#define TESTS_UNIT_KERNELS_SUPPORT_H

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cast.h"
#include "layout/dtype.h"
#include "tests/unit/random.h"

static inline __attribute__((unused)) float *random_floats(struct rng *r, int64_t n, double size)
{
    float *x = malloc((size_t)(n + 1) * sizeof *x);

    cr_assert(x);
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(rng_real(r) * size);
    return x;
}

static inline __attribute__((unused)) float *filled_floats(int64_t n, float value)
{
    float *x = malloc((size_t)(n + 1) * sizeof *x);

    cr_assert(x);
    for (int64_t i = 0; i < n; i++)
        x[i] = value;
    return x;
}

/* x in `type`, in memory of its own; x itself becomes what was stored, so that a reference in
 * double starts from the same numbers. */
static inline __attribute__((unused)) void *stored_as(enum dtype type, float *x, int64_t n)
{
    void *y = malloc((size_t)(n + 1) * sizeof *x);

    cr_assert(y);
    cast(y, type, x, DTYPE_F32, n);
    cast(x, DTYPE_F32, y, type, n);
    return y;
}

/* n elements of `type` as floats, in memory of their own. */
static inline __attribute__((unused)) float *as_floats(enum dtype type, const void *y, int64_t n)
{
    float *x = malloc((size_t)(n + 1) * sizeof *x);

    cr_assert(x);
    cast(x, DTYPE_F32, y, type, n);
    return x;
}

/* Relative rounding step of a type. */
static inline __attribute__((unused)) double epsilon(enum dtype type)
{
    return type == DTYPE_F32 ? 0x1p-23 : 0x1p-8;
}

#define assert_near(got, want, tolerance, what)                                          \
    cr_assert(fabs((double)(got) - (double)(want)) <= (tolerance),                       \
              "%s: got %.9g, want %.9g, off by %.3g, allowed %.3g", what, (double)(got), \
              (double)(want), fabs((double)(got) - (double)(want)), (double)(tolerance))

#endif
