/*
 * tests/mpi/comm_expected.h - the input of each rank to collectives in tests, and the expected
 * results: one element at a time, with sums along the tree of kernels/cpu/tree_reduce.h.
 */
#ifndef TESTS_MPI_COMM_EXPECTED_H
#define TESTS_MPI_COMM_EXPECTED_H

#include <stdint.h>
#include <string.h>

#include "comm/comm.h"
#include "tests/unit/random.h"

static const enum dtype PROP_TYPES[] = { DTYPE_F32, DTYPE_BF16, DTYPE_F64, DTYPE_I64 };

/* Element i of a rank's input. Magnitudes differ, so that another order of sums changes bits. */
static inline double prop_value(uint64_t call, int rank, int64_t i)
{
    struct rng r = { call * 1000003u + (uint64_t)rank * 7919u + (uint64_t)i * 0x100000001b3u };
    double x = rng_real(&r);

    return x * (double)(INT64_C(1) << rng_int(&r, 0, 20));
}

/* Round a finite float to bf16, to nearest even; and convert it back. */
static inline uint16_t prop_to_bf16(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof u);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static inline float prop_from_bf16(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float x;

    memcpy(&x, &u, sizeof x);
    return x;
}

static inline void prop_store(void *buf, int64_t i, enum dtype type, double x)
{
    if (type == DTYPE_F32)
        ((float *)buf)[i] = (float)x;
    else if (type == DTYPE_BF16)
        ((uint16_t *)buf)[i] = prop_to_bf16((float)x);
    else if (type == DTYPE_F64)
        ((double *)buf)[i] = x;
    else
        ((int64_t *)buf)[i] = (int64_t)x;
}

/* An element during a reduction. bf16 elements are reduced in f32. */
union prop_one {
    float f32;
    double f64;
    int64_t i64;
};

static inline union prop_one prop_load(enum dtype type, double x)
{
    union prop_one one = { .i64 = 0 };

    if (type == DTYPE_F32)
        one.f32 = (float)x;
    else if (type == DTYPE_BF16)
        one.f32 = prop_from_bf16(prop_to_bf16((float)x));
    else if (type == DTYPE_F64)
        one.f64 = x;
    else
        one.i64 = (int64_t)x;
    return one;
}

static inline union prop_one prop_combine(union prop_one a, union prop_one b, enum dtype type,
                                          enum comm_op op)
{
    if (type == DTYPE_F32 || type == DTYPE_BF16)
        a.f32 = op == COMM_SUM ? a.f32 + b.f32 : a.f32 > b.f32 ? a.f32 : b.f32;
    else if (type == DTYPE_F64)
        a.f64 = op == COMM_SUM ? a.f64 + b.f64 : a.f64 > b.f64 ? a.f64 : b.f64;
    else
        a.i64 = op == COMM_SUM ? a.i64 + b.i64 : a.i64 > b.i64 ? a.i64 : b.i64;
    return a;
}

/* Reduce element `at` over the ranks along the tree. Place k holds the result of 2^k neighbouring
 * ranks, and a carry combines two of them, as in a binary counter. At the end the remaining places
 * are combined, the lowest first. */
static inline union prop_one prop_counter(int64_t at, const int *ranks, int n_ranks, uint64_t call,
                                          enum dtype type, enum comm_op op)
{
    union prop_one place[8] = { { 0 } }, carry;
    int k;

    for (int r = 0; r < n_ranks; r++) {
        carry = prop_load(type, prop_value(call, ranks[r], at));
        for (k = 0; r >> k & 1; k++)
            carry = prop_combine(place[k], carry, type, op);
        place[k] = carry;
    }
    for (k = 0; !(n_ranks >> k & 1); k++)
        ;
    carry = place[k];
    for (k++; n_ranks >> k; k++)
        if (n_ranks >> k & 1)
            carry = prop_combine(place[k], carry, type, op);
    return carry;
}

/* The expected result, one element at a time. base: added to the index (reduce_scatter). */
static inline void prop_reduce(void *out, int64_t n, int64_t base, const int *ranks, int n_ranks,
                               uint64_t call, enum dtype type, enum comm_op op)
{
    for (int64_t i = 0; i < n; i++) {
        union prop_one x = prop_counter(base + i, ranks, n_ranks, call, type, op);
        uint16_t rounded = type == DTYPE_BF16 ? prop_to_bf16(x.f32) : 0;
        int width = dtype_bytes(type);

        memcpy((char *)out + i * width, type == DTYPE_BF16 ? (void *)&rounded : &x, (size_t)width);
    }
}

#endif
