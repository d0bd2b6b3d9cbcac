/* Unit tests of reshard/formats/gguf/gguf_q8_0.h and gguf_tensors.h. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cast.h"
#include "reshard/formats/gguf/gguf_q8_0.h"
#include "reshard/formats/gguf/gguf_tensors.h"
#include "tests/unit/random.h"

enum { N = 32 * 300 };

/* ggml's reference code, written from its description. */
static void reference(unsigned char *to, const float *from, int64_t n)
{
    for (int64_t b = 0; b < n / 32; b++, to += 34, from += 32) {
        float largest = 0, scale, inverse;

        for (int i = 0; i < 32; i++)
            largest = fmaxf(largest, fabsf(from[i]));
        scale = largest / 127;
        inverse = scale != 0 ? 1 / scale : 0;
        cast(to, DTYPE_F16, &scale, DTYPE_F32, 1);
        for (int i = 0; i < 32; i++)
            ((signed char *)to)[2 + i] = (signed char)roundf(from[i] * inverse);
    }
}

Test(gguf, q8_0_rounds_as_ggml_does)
{
    struct rng r = rng_start("q8_0_rounds_as_ggml_does");
    static float from[N];
    static unsigned char got[N / 32 * 34], want[N / 32 * 34];

    for (int i = 0; i < N; i++) {
        const int block = i / 32;

        from[i] = (float)rng_real(&r);
        if (block % 4 == 1) /* halves of a scale of 1 */
            from[i] = i % 32 == 0 ? 127 : (float)rng_int(&r, -254, 254) / 2;
        if (block % 4 == 2)
            from[i] = ldexpf(from[i], (int)rng_int(&r, -40, 10));
    }
    memset(from + 32 * 7, 0, 32 * sizeof *from);
    cr_assert(gguf_q8_0_quantize(got, from, N));
    reference(want, from, N);
    cr_assert(memcmp(got, want, sizeof got) == 0);
}

Test(gguf, q8_0_refuses_what_it_cannot_hold_and_takes_the_smallest_numbers)
{
    const float bad[] = { INFINITY, -INFINITY, NAN, 1e8F, 3e38F };
    float from[64] = { 1, 2, 3 };
    unsigned char to[68];

    for (int i = 0; i < 5; i++) {
        from[40] = bad[i];
        cr_assert_not(gguf_q8_0_quantize(to, from, 64), "%g", (double)bad[i]);
    }
    from[40] = 1e-44F; /* its scale is 0 in f16 */
    cr_assert(gguf_q8_0_quantize(to, from, 64));
    cr_assert(to[34] == 0 && to[35] == 0);
}

/* A part's rows go to every row of the file's tensor once. */
static void check_rows(struct gguf_part p)
{
    char *seen = calloc((size_t)p.rows, 1);

    cr_assert(seen);
    for (int64_t row = 0; row < p.rows; row++) {
        const int64_t to = gguf_part_row(&p, row);

        cr_assert(to >= 0 && to < p.rows && !seen[to], "row %lld", (long long)row);
        seen[to] = 1;
    }
    free(seen);
}

Test(gguf, rows_change_places_one_to_one)
{
    const struct gguf_part pairs = { .order = GGUF_ORDER_PAIRS, .rows = 24, .head_dim = 8 };
    const struct gguf_part qkv = {
        .order = GGUF_ORDER_QKV, .rows = 3 * 5 * 4, .head_dim = 4, .heads = 5
    };

    check_rows(pairs);
    check_rows(qkv);
    cr_assert_eq(gguf_part_row(&pairs, 8 + 4), 8 + 1); /* head 1, second half, first pair */
    cr_assert_eq(gguf_part_row(&qkv, 4 * (3 * 2 + 1) + 3), 4 * (5 + 2) + 3); /* key 3 of head 2 */
}
