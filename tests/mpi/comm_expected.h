/*
 * tests/mpi/comm_expected.h - what ranks give to collectives in tests, and what must come out: one
 * element at a time, sums along the tree of comm/reduce.h.
 */
#ifndef TESTS_MPI_COMM_EXPECTED_H
#define TESTS_MPI_COMM_EXPECTED_H

#include <stdint.h>
#include <string.h>

#include "comm/comm.h"
#include "tests/unit/random.h"

/* Element i of rank's input to a call; magnitudes differ, so that the order of a sum shows. */
static inline double prop_value(uint64_t call, int rank, int64_t i)
{
    struct rng r = { call * 1000003u + (uint64_t)rank * 7919u + (uint64_t)i * 0x100000001b3u };
    double x = rng_real(&r);

    return x * (double)(INT64_C(1) << rng_int(&r, 0, 20));
}

static inline void prop_store(void *buf, int64_t i, enum comm_type type, double x)
{
    if (type == COMM_F32)
        ((float *)buf)[i] = (float)x;
    else if (type == COMM_F64)
        ((double *)buf)[i] = x;
    else
        ((int64_t *)buf)[i] = (int64_t)x;
}

static inline int64_t prop_width(enum comm_type type)
{
    return type == COMM_F32 ? 4 : 8;
}

/* One element, as its type has it. */
union prop_one {
    float f32;
    double f64;
    int64_t i64;
};

static inline union prop_one prop_combine(union prop_one a, union prop_one b, enum comm_type type,
                                          enum comm_op op)
{
    if (type == COMM_F32)
        a.f32 = op == COMM_SUM ? a.f32 + b.f32 : a.f32 > b.f32 ? a.f32 : b.f32;
    else if (type == COMM_F64)
        a.f64 = op == COMM_SUM ? a.f64 + b.f64 : a.f64 > b.f64 ? a.f64 : b.f64;
    else
        a.i64 = op == COMM_SUM ? a.i64 + b.i64 : a.i64 > b.i64 ? a.i64 : b.i64;
    return a;
}

/* Element `at` over the ranks, as a binary counter carries: place k holds the result of 2^k ranks
 * side by side; what is left in it at the end comes together from the lowest place upwards. */
static inline union prop_one prop_counter(int64_t at, const int *ranks, int n_ranks, uint64_t call,
                                          enum comm_type type, enum comm_op op)
{
    union prop_one place[8] = { { 0 } }, carry;
    int k;

    for (int r = 0; r < n_ranks; r++) {
        prop_store(&carry, 0, type, prop_value(call, ranks[r], at));
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

/* The reference: one element at a time. base shifts the index (reduce_scatter). */
static inline void prop_reduce(void *out, int64_t n, int64_t base, const int *ranks, int n_ranks,
                               uint64_t call, enum comm_type type, enum comm_op op)
{
    for (int64_t i = 0; i < n; i++) {
        union prop_one x = prop_counter(base + i, ranks, n_ranks, call, type, op);

        memcpy((char *)out + i * prop_width(type), &x, (size_t)prop_width(type));
    }
}

#endif
