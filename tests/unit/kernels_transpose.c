/* tests/unit/kernels_transpose.c - transposition, element by element. */
#include "kernels/cpu/transpose.h"

#include "tests/unit/kernels_support.h"

static void one_case(struct rng *r, int bytes)
{
    int64_t rows = rng_int(r, 0, 70), cols = rng_int(r, 0, 70), ld_x = cols + rng_int(r, 0, 5);
    int64_t whole = (rows + TRANSPOSE_LANES - 1) / TRANSPOSE_LANES * TRANSPOSE_LANES;
    int64_t ld_y = whole + rng_int(r, 0, 5);
    unsigned char *x = malloc((size_t)(rows * ld_x * bytes) + 1);
    unsigned char *y = malloc((size_t)(cols * ld_y * bytes) + 1);
    unsigned char filler[4] = { 0xee, 0xee, 0xee, 0xee }, zero[4] = { 0 };

    cr_assert(x && y);
    for (int64_t i = 0; i < rows * ld_x * bytes; i++)
        x[i] = (unsigned char)rng_next(r);
    memset(y, 0xee, (size_t)(cols * ld_y * bytes));
    transpose(y, ld_y, x, ld_x, rows, cols, bytes);
    for (int64_t c = 0; c < cols; c++)
        for (int64_t i = 0; i < ld_y; i++) {
            const unsigned char *want = i < rows    ? x + (i * ld_x + c) * bytes
                                        : i < whole ? zero
                                                    : filler;
            cr_assert_eq(memcmp(y + (c * ld_y + i) * bytes, want, (size_t)bytes), 0,
                         "row %lld of %lld, column %lld of %lld", (long long)i, (long long)rows,
                         (long long)c, (long long)cols);
        }
    free(x);
    free(y);
}

Test(transpose, moves_every_element)
{
    struct rng r = rng_start("transpose");

    for (int i = 0; i < 300; i++)
        one_case(&r, i & 1 ? 4 : 2);
}
