/* tests/unit/kernels_tree_reduce.c - sums and maxima of rows along a binary tree. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/tree_reduce.h"
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
    tree_reduce(&(struct tree_reduce){ &dst, 1, at, n, DTYPE_F32, TREE_REDUCE_SUM }, N);
    for (int i = 1; i < N; i++)
        cr_assert_eq(out[i], out[0], "element %d is %g, not %g", i, (double)out[i], (double)out[0]);
    return out[0];
}

Test(tree_reduce, neighbours_are_added_first)
{
    /* 2^25 + 1 rounds to 2^25, so H + 1 - H is 0 and H - H + 1 is 1. */
    const float H = 33554432;

    cr_expect_eq(sum_of((const float[]){ 1, 1, H, -H }, 4), 2);
    cr_expect_eq(sum_of((const float[]){ H, 1, -H, 1 }, 4), 0); /* 1 in rank order */
    cr_expect_eq(sum_of((const float[]){ H, -H, 1 }, 3), 1);
    cr_expect_eq(sum_of((const float[]){ 1, H, -H }, 3), 0);
    /* ((0 + 1) + (2 + 3)) + ((4 + 5) + 6): element 6 counts only if the others cancel first */
    cr_expect_eq(sum_of((const float[]){ H, 0, 0, 0, -H, 0, 1 }, 7), 0);
    cr_expect_eq(sum_of((const float[]){ 0, 0, 0, 0, -H, H, 1 }, 7), 1);
    cr_expect_eq(sum_of((const float[]){ H, 0, -H, 0, 0, 0, 1 }, 7), 1);
    cr_expect_eq(sum_of((const float[]){ H, 0, 0, 0, -H, 1 }, 6), 0);
}

/* Because of this, a rank can add neighbours before it communicates. */
Test(tree_reduce, the_sum_of_sums_of_neighbours_is_the_sum_of_all)
{
    static float rows[16][N], part[16][N], all[N], composed[N];
    struct rng rng = rng_start("tree_reduce/compose");
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
        tree_reduce(&(struct tree_reduce){ &dst, 1, at, each * parts, DTYPE_F32, TREE_REDUCE_SUM },
                    n);
        for (int p = 0; p < parts; p++) {
            dst = part[p];
            tree_reduce(
                &(struct tree_reduce){ &dst, 1, at + p * each, each, DTYPE_F32, TREE_REDUCE_SUM },
                n);
        }
        for (int p = 0; p < parts; p++)
            at[p] = part[p];
        dst = composed;
        tree_reduce(&(struct tree_reduce){ &dst, 1, at, parts, DTYPE_F32, TREE_REDUCE_SUM }, n);
        cr_assert(memcmp(all, composed, (size_t)n * sizeof *all) == 0, "%d x %d rows of %d", parts,
                  each, (int)n);
    }
}

Test(tree_reduce, the_sum_goes_to_every_destination_also_when_these_are_the_rows)
{
    static int64_t a[N], b[N];
    void *dsts[2] = { a, b };
    const void *rows[2] = { a, b };

    for (int i = 0; i < N; i++)
        a[i] = i, b[i] = INT64_MAX - i; /* the sums overflow and wrap */
    a[7] = 100;
    tree_reduce(&(struct tree_reduce){ dsts, 2, rows, 2, DTYPE_I64, TREE_REDUCE_SUM }, N);
    for (int i = 0; i < N; i++)
        cr_assert(a[i] == b[i] && a[i] == (i == 7 ? INT64_MIN + 92 : INT64_MAX), "element %d", i);
}

Test(tree_reduce, a_nan_in_any_row_is_the_maximum)
{
    for (int with = 0; with < 3; with++) {
        double rows[3][4] = { { 1, -2, 3, -INFINITY }, { 2, -3, 3, 5 }, { 0, -1, 3, INFINITY } };
        const void *at[3] = { rows[0], rows[1], rows[2] };
        double out[4];
        void *dst = out;

        rows[with][0] = NAN;
        tree_reduce(&(struct tree_reduce){ &dst, 1, at, 3, DTYPE_F64, TREE_REDUCE_MAX }, 4);
        cr_expect(isnan(out[0]), "row %d: %g", with, out[0]);
        cr_expect(out[1] == -1 && out[2] == 3 && out[3] == INFINITY);
    }
}

/* bf16 has 8 bits: 1 + 2^-8 + 2^-8 is 1 when rounded after each sum, and 1 + 2^-7 when once. */
Test(tree_reduce, bf16_is_summed_in_f32_and_rounded_once)
{
    enum { COUNT = 3000 };
    static uint16_t rows[3][COUNT], out[COUNT];
    const void *at[3] = { rows[0], rows[1], rows[2] };
    void *dst = out;
    const uint16_t one = 0x3f80, small = 0x3b80, sum = 0x3f81;

    for (int i = 0; i < COUNT; i++)
        rows[0][i] = one, rows[1][i] = rows[2][i] = small;
    tree_reduce(&(struct tree_reduce){ &dst, 1, at, 3, DTYPE_BF16, TREE_REDUCE_SUM }, COUNT);
    for (int i = 0; i < COUNT; i++)
        cr_assert_eq(out[i], sum, "element %d is %x", i, (unsigned)out[i]);
    tree_reduce(&(struct tree_reduce){ &dst, 1, at, 3, DTYPE_BF16, TREE_REDUCE_MAX }, COUNT);
    cr_assert_eq(out[COUNT - 1], one);
    tree_reduce(&(struct tree_reduce){ &dst, 1, at + 1, 1, DTYPE_BF16, TREE_REDUCE_SUM }, COUNT);
    cr_assert_eq(out[0], small, "a single row is copied");
}
