/* comm/reduce.c - see comm/reduce.h. */
#include "comm/reduce.h"

#include <string.h>

#include "comm/backend.h"

/* One copy of a loop for each vector width, chosen when the program is loaded. The sanitizers'
 * runtime is not yet up at that time, so their builds have the plain loop alone. */
#if defined(__x86_64__) && !defined(TP_SANITIZE)
#define REDUCE_LOOP __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define REDUCE_LOOP
#endif

enum { BLOCK_BYTES = 8192 }; /* of the accumulator: stays in the first-level cache */

union block {
    float f32[BLOCK_BYTES / sizeof(float)];
    double f64[BLOCK_BYTES / sizeof(double)];
    uint64_t u64[BLOCK_BYTES / sizeof(uint64_t)]; /* sums of i64 wrap */
    int64_t i64[BLOCK_BYTES / sizeof(int64_t)];
};

REDUCE_LOOP static void sum_f32(float *restrict acc, const float *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        acc[i] += x[i];
}

REDUCE_LOOP static void sum_f64(double *restrict acc, const double *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        acc[i] += x[i];
}

REDUCE_LOOP static void sum_u64(uint64_t *restrict acc, const uint64_t *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        acc[i] += x[i];
}

REDUCE_LOOP static void max_f32(float *restrict acc, const float *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        acc[i] = acc[i] > x[i] || acc[i] != acc[i] ? acc[i] : x[i];
}

REDUCE_LOOP static void max_f64(double *restrict acc, const double *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        acc[i] = acc[i] > x[i] || acc[i] != acc[i] ? acc[i] : x[i];
}

REDUCE_LOOP static void max_i64(int64_t *restrict acc, const int64_t *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        acc[i] = acc[i] > x[i] ? acc[i] : x[i];
}

static void add_row(union block *acc, const void *row, int64_t n, enum comm_type type,
                    enum comm_op op)
{
    if (type == COMM_F32 && op == COMM_SUM)
        sum_f32(acc->f32, row, n);
    else if (type == COMM_F32)
        max_f32(acc->f32, row, n);
    else if (type == COMM_F64 && op == COMM_SUM)
        sum_f64(acc->f64, row, n);
    else if (type == COMM_F64)
        max_f64(acc->f64, row, n);
    else if (op == COMM_SUM)
        sum_u64(acc->u64, row, n);
    else
        max_i64(acc->i64, row, n);
}

void comm_reduce(void *const *dsts, int n_dsts, const void *const *rows, int n_rows, int64_t n,
                 enum comm_type type, enum comm_op op)
{
    int64_t width = comm_type_bytes(type), step = BLOCK_BYTES / width;
    union block acc;

    for (int64_t lo = 0; lo < n; lo += step) {
        int64_t len = n - lo < step ? n - lo : step;

        memcpy(&acc, (const char *)rows[0] + lo * width, (size_t)(len * width));
        for (int r = 1; r < n_rows; r++)
            add_row(&acc, (const char *)rows[r] + lo * width, len, type, op);
        for (int d = 0; d < n_dsts; d++)
            memcpy((char *)dsts[d] + lo * width, &acc, (size_t)(len * width));
    }
}
