/* tests/unit/comm_reduce.c - sums and maxima of rows. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "comm/reduce.h"

enum { N = 5000 };

Test(comm_reduce, sums_are_taken_in_the_order_of_the_rows)
{
    /* 1 is lost beside 2^24 unless the two ones meet first. */
    static const float values[4] = { 1, 1, 16777216, -16777216 };
    static float rows[4][N], out[N];
    const void *forth[4], *back[4];
    void *dst = out;

    for (int r = 0; r < 4; r++) {
        for (int i = 0; i < N; i++)
            rows[r][i] = values[r];
        forth[r] = rows[r];
        back[3 - r] = rows[r];
    }
    comm_reduce(&dst, 1, forth, 4, N, COMM_F32, COMM_SUM);
    for (int i = 0; i < N; i++)
        cr_assert_eq(out[i], 2.0f, "element %d is %g", i, (double)out[i]);
    forth[0] = rows[2], forth[1] = rows[0], forth[2] = rows[1], forth[3] = rows[3];
    comm_reduce(&dst, 1, forth, 4, N, COMM_F32, COMM_SUM);
    for (int i = 0; i < N; i++)
        cr_assert_eq(out[i], 0.0f, "element %d is %g", i, (double)out[i]);
    comm_reduce(&dst, 1, back, 4, N, COMM_F32, COMM_SUM);
    for (int i = 0; i < N; i++)
        cr_assert_eq(out[i], 2.0f, "element %d is %g", i, (double)out[i]);
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
