/*
 * tests/unit/trainer_lessons.c - the two lessons of tensor parallelism, in numbers small enough to
 * check by hand. docs/parallelism/tensor.md explains them. The test counts the bytes that are sent.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "tests/unit/rank_device.h"
#include "tests/unit/ranks.h"
#include "trainer/tensor/parallel_linear.h"

enum { ROWS = 3, IN = 4, MID = 6, OUT = 4, RANKS = 2, HALF = MID / RANKS };

static const float X[ROWS][IN] = { { 1, 2, 3, 4 }, { 5, 6, 7, 8 }, { 9, 10, 11, 12 } };
static const float W[IN][MID] = {
    { 1, 0, 2, 1, 0, 1 }, { 0, 1, 1, 0, 2, 1 }, { 1, 1, 0, 2, 1, 0 }, { 2, 0, 1, 1, 0, 1 }
};
static const float C[MID][OUT] = { { 1, 0, 1, 0 }, { 0, 1, 0, 1 }, { 1, 1, 0, 0 },
                                   { 0, 0, 1, 1 }, { 2, 0, 0, 1 }, { 0, 2, 1, 0 } };
/* computed by hand */
static const float XW[ROWS][MID] = { { 12, 5, 8, 11, 7, 7 },
                                     { 28, 13, 24, 27, 19, 19 },
                                     { 44, 21, 40, 43, 31, 31 } };
static const float XWC[ROWS][OUT] = { { 34, 27, 30, 23 },
                                      { 90, 75, 74, 59 },
                                      { 146, 123, 118, 95 } };

/* The kernels and the queue of a rank. */
static struct kernel_queue K;

typedef int (*lesson_fn)(struct rank_device *d);

static int learn(struct comm_world *ranks, void *ctx)
{
    const lesson_fn *fn = ctx;
    struct rank_device d;
    struct tp_err err = { 0 };
    int wrong;

    cr_assert_eq(rank_device_open(&d, ranks, &err), TP_OK, "%s", err.msg);
    K = (struct kernel_queue){ &kernels_cpu, d.queue };
    wrong = (*fn)(&d);
    wrong += wrong_unless(rank_device_sync(&d, d.queue, &err) == TP_OK, err.msg);
    rank_device_close(&d);
    return wrong;
}

/* Run fn in two ranks. */
static void teach(lesson_fn fn)
{
    cr_assert_eq(run_ranks(RANKS, 1 << 20, learn, &fn), 0);
}

/* Columns first .. first + n - 1 of a[rows][cols], transposed as linear layers store them. */
static void columns_of(float *out, const float *a, int rows, int cols, int first, int n)
{
    for (int j = 0; j < n; j++)
        for (int i = 0; i < rows; i++)
            out[j * rows + i] = a[i * cols + first + j];
}

/* Since `before`, c must have n calls of kind `call`, of `floats` elements each, and no others. */
static int check_calls(const struct comm *c, const struct comm_counts *before, int call, int n,
                       int floats)
{
    int wrong = 0;

    for (int i = 0; i < COMM_KINDS; i++) {
        int64_t calls = comm_counts(c)->calls[i] - before->calls[i];
        int64_t bytes = comm_counts(c)->bytes[i] - before->bytes[i];

        wrong += wrong_unless(calls == (i == call ? n : 0), "number of calls");
        wrong += wrong_unless(bytes == (i == call ? 4 * n * floats : 0), "bytes sent");
    }
    return wrong;
}

/* Gather every rank's [ROWS][n] and place them side by side: [ROWS][n * RANKS]. */
static void concatenate(const struct rank_device *d, float *full, const float *part, int n)
{
    float all[RANKS * ROWS * MID];

    comm_all_gather(d->all, d->queue, all, part, ROWS * n, DTYPE_F32);
    for (int r = 0; r < RANKS; r++)
        for (int i = 0; i < ROWS; i++)
            memcpy(full + i * n * RANKS + r * n, all + (r * ROWS + i) * n, (size_t)n * sizeof *all);
}

/* ---- lesson 1: the products of two halves of a matrix, side by side, are the product ---- */

static int halves(struct rank_device *d)
{
    float half[HALF * IN], part[ROWS * HALF], whole[ROWS * MID];
    struct comm_counts before = *comm_counts(d->all);
    struct linear l = { .k = &K, .weight = half, .out = HALF, .in = IN, .tp = d->all };
    int wrong;

    columns_of(half, &W[0][0], IN, MID, comm_rank(d->all) * HALF, HALF);
    linear_column_forward(&l, part, X, ROWS);
    wrong = check_calls(d->all, &before, -1, 0, 0); /* the product itself sends nothing */
    concatenate(d, whole, part, HALF);
    wrong += wrong_unless(memcmp(whole, XW, sizeof XW) == 0, "halves side by side");
    return wrong + check_calls(d->all, &before, COMM_ALL_GATHER, 1, ROWS * HALF);
}

Test(trainer_lessons, products_of_the_halves_side_by_side_are_the_product)
{
    teach(halves);
}

/* ---- lesson 2: the cut of the second matrix decides what is sent ---- */

static int column_then_column(struct rank_device *d)
{
    float b[HALF * IN], c[OUT / RANKS * MID], part[ROWS * HALF], mid[ROWS * MID];
    float part2[ROWS * OUT / RANKS], whole[ROWS * OUT];
    struct linear first = { .k = &K, .weight = b, .out = HALF, .in = IN, .tp = d->all };
    struct linear second = { .k = &K, .weight = c, .out = OUT / RANKS, .in = MID, .tp = d->all };
    struct comm_counts before = *comm_counts(d->all), between;
    int wrong;

    columns_of(b, &W[0][0], IN, MID, comm_rank(d->all) * HALF, HALF);
    columns_of(c, &C[0][0], MID, OUT, comm_rank(d->all) * OUT / RANKS, OUT / RANKS);
    linear_column_forward(&first, part, X, ROWS);
    concatenate(d, mid, part, HALF); /* every column of C is multiplied by all of X B */
    wrong = check_calls(d->all, &before, COMM_ALL_GATHER, 1, ROWS * HALF);
    linear_column_forward(&second, part2, mid, ROWS);
    between = *comm_counts(d->all);
    concatenate(d, whole, part2, OUT / RANKS);
    wrong += check_calls(d->all, &between, COMM_ALL_GATHER, 1, ROWS * OUT / RANKS);
    return wrong + wrong_unless(memcmp(whole, XWC, sizeof XWC) == 0, "X B C");
}

static int column_then_row(struct rank_device *d)
{
    float b[HALF * IN], c[OUT * HALF], part[ROWS * HALF], whole[ROWS * OUT];
    struct linear first = { .k = &K, .weight = b, .out = HALF, .in = IN, .tp = d->all };
    struct linear second = { .k = &K, .weight = c, .out = OUT, .in = HALF, .tp = d->all };
    struct comm_counts before = *comm_counts(d->all);
    int wrong, row = comm_rank(d->all) * HALF;

    columns_of(b, &W[0][0], IN, MID, row, HALF);
    columns_of(c, &C[row][0], HALF, OUT, 0, OUT);
    linear_column_forward(&first, part, X, ROWS);
    wrong = check_calls(d->all, &before, -1, 0, 0); /* nothing in between */
    linear_row_forward(&second, whole, part, ROWS);
    wrong += wrong_unless(memcmp(whole, XWC, sizeof XWC) == 0, "X B C");
    return wrong + check_calls(d->all, &before, COMM_ALL_REDUCE, 1, ROWS * OUT);
}

Test(trainer_lessons, column_then_column_gathers_in_between)
{
    teach(column_then_column);
}

Test(trainer_lessons, column_then_row_needs_one_all_reduce)
{
    teach(column_then_row);
}

/* Backward is the mirror image: with dY = XWC, dX = dY C^T B^T needs one all-reduce, at the column
 * layer; the gradients of both matrices need none. */
static int backward(struct rank_device *d)
{
    float b[HALF * IN], db[HALF * IN], c[OUT * HALF], dc[OUT * HALF], part[ROWS * HALF];
    float dpart[ROWS * HALF], dx[ROWS * IN], expect;
    struct linear first = { .k = &K, .weight = b, .grad = db, .out = HALF, .in = IN, .tp = d->all };
    struct linear second = {
        .k = &K, .weight = c, .grad = dc, .out = OUT, .in = HALF, .tp = d->all
    };
    struct comm_counts before = *comm_counts(d->all);
    int wrong = 0, row = comm_rank(d->all) * HALF;

    columns_of(b, &W[0][0], IN, MID, row, HALF);
    columns_of(c, &C[row][0], HALF, OUT, 0, OUT);
    linear_column_forward(&first, part, X, ROWS);
    linear_row_backward(&second, dpart, XWC, part, ROWS, false);
    wrong += check_calls(d->all, &before, -1, 0, 0);
    linear_column_backward(&first, dx, dpart, X, ROWS, false);
    for (int i = 0; i < ROWS; i++)
        for (int k = 0; k < IN; k++) {
            expect = 0;
            for (int m = 0; m < MID; m++)
                for (int o = 0; o < OUT; o++)
                    expect += XWC[i][o] * C[m][o] * W[k][m];
            wrong += wrong_unless(dx[i * IN + k] == expect, "gradient of X");
        }
    for (int o = 0; o < OUT; o++)
        for (int m = 0; m < HALF; m++) {
            expect = 0;
            for (int i = 0; i < ROWS; i++)
                expect += XWC[i][o] * XW[i][row + m];
            wrong += wrong_unless(dc[o * HALF + m] == expect, "gradient of C's rows");
        }
    return wrong + check_calls(d->all, &before, COMM_ALL_REDUCE, 1, ROWS * IN);
}

Test(trainer_lessons, backward_needs_one_all_reduce_for_the_pair_too)
{
    teach(backward);
}
