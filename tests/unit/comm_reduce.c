/* tests/unit/comm_reduce.c - sums and maxima of rows. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "comm/reduce.h"
#include "tests/unit/random.h"

enum { N = 5000 };

/* Sums of n rows of one value each. */
static float sum_of(const float *values, int n)
{
    static float rows[8][N], out[N];
    const void *at[8];
    void *dst = out;

    for (int r = 0; r < n; r++) {
        for (int i = 0; i < N; i++)
            rows[r][i] = values[r];
        at[r] = rows[r];
    }
    comm_reduce(&dst, 1, at, n, N, COMM_F32, COMM_SUM);
    for (int i = 1; i < N; i++)
        cr_assert_eq(out[i], out[0], "element %d is %g, not %g", i, (double)out[i], (double)out[0]);
    return out[0];
}

Test(comm_reduce, neighbours_are_added_first)
{
    /* 1 is lost beside 2^25; H + 1 - H is 0, H - H + 1 is 1. */
    const float H = 33554432;

    cr_expect_eq(sum_of((const float[]){ 1, 1, H, -H }, 4), 2);
    cr_expect_eq(sum_of((const float[]){ H, 1, -H, 1 }, 4), 0); /* in rank order 1 */
    cr_expect_eq(sum_of((const float[]){ H, -H, 1 }, 3), 1);
    cr_expect_eq(sum_of((const float[]){ 1, H, -H }, 3), 0);
    /* (0 + 1) + (2 + 3) and then ((4 + 5) + 6): 1 survives in the last three alone */
    cr_expect_eq(sum_of((const float[]){ H, 0, 0, 0, -H, 0, 1 }, 7), 0);
    cr_expect_eq(sum_of((const float[]){ 0, 0, 0, 0, -H, H, 1 }, 7), 1);
    cr_expect_eq(sum_of((const float[]){ H, 0, -H, 0, 0, 0, 1 }, 7), 1);
    cr_expect_eq(sum_of((const float[]){ H, 0, 0, 0, -H, 1 }, 6), 0);
}

/* What lets a rank add neighbours itself and leave the rest to the others. */
Test(comm_reduce, sums_of_neighbours_have_the_sum_of_all)
{
    static float rows[16][N], part[16][N], all[N], composed[N];
    struct rng rng = rng_start("comm_reduce/compose");
    const void *at[16];
    void *dst;

    for (int round = 0; round < 20; round++) {
        int each = 1 << rng_int(&rng, 1, 3), parts = (int)rng_int(&rng, 1, 16 / each);
        int64_t n = rng_int(&rng, 1, N);

        for (int r = 0; r < each * parts; r++) {
            for (int64_t i = 0; i < n; i++)
                rows[r][i] = (float)(rng_real(&rng) * (double)(INT64_C(1) << rng_int(&rng, 0, 20)));
            at[r] = rows[r];
        }
        dst = all;
        comm_reduce(&dst, 1, at, each * parts, n, COMM_F32, COMM_SUM);
        for (int p = 0; p < parts; p++) {
            dst = part[p];
            comm_reduce(&dst, 1, at + p * each, each, n, COMM_F32, COMM_SUM);
        }
        for (int p = 0; p < parts; p++)
            at[p] = part[p];
        dst = composed;
        comm_reduce(&dst, 1, at, parts, n, COMM_F32, COMM_SUM);
        cr_assert(memcmp(all, composed, (size_t)n * sizeof *all) == 0, "%d x %d rows of %d", parts,
                  each, (int)n);
    }
}

Test(comm_reduce, the_sum_goes_to_every_destination_also_when_those_are_the_rows)
{
    static int64_t a[N], b[N];
    void *dsts[2] = { a, b };
    const void *rows[2] = { a, b };

    for (int i = 0; i < N; i++)
        a[i] = i, b[i] = INT64_MAX - i; /* sums wrap */
    a[7] = 100;
    comm_reduce(dsts, 2, rows, 2, N, COMM_I64, COMM_SUM);
    for (int i = 0; i < N; i++)
        cr_assert(a[i] == b[i] && a[i] == (i == 7 ? INT64_MIN + 92 : INT64_MAX), "element %d", i);
}

Test(comm_reduce, a_nan_in_any_row_is_the_maximum)
{
    for (int with = 0; with < 3; with++) {
        double rows[3][4] = { { 1, -2, 3, -INFINITY }, { 2, -3, 3, 5 }, { 0, -1, 3, INFINITY } };
        const void *at[3] = { rows[0], rows[1], rows[2] };
        double out[4];
        void *dst = out;

        rows[with][0] = NAN;
        comm_reduce(&dst, 1, at, 3, 4, COMM_F64, COMM_MAX);
        cr_expect(isnan(out[0]), "row %d: %g", with, out[0]);
        cr_expect(out[1] == -1 && out[2] == 3 && out[3] == INFINITY);
    }
}
