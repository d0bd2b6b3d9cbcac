/*
 * tests/unit/reshard_fp8.c - weights in FP8: every byte, every kind of blocks, any run.
 *
 * covers: reshard/formats/safetensors/fp8
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cast.h"
#include "reshard/formats/safetensors/fp8.h"
#include "tests/unit/random.h"

/* By the definition of e4m3fn. */
static double e4m3(unsigned byte)
{
    const int exponent = (int)(byte >> 3) & 15, mantissa = (int)byte & 7;
    double x = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);

    if (exponent == 15 && mantissa == 7)
        x = NAN;
    return byte & 128 ? -x : x;
}

static uint16_t rounded(double x)
{
    const float f = (float)x;
    uint16_t r;

    cast(&r, DTYPE_BF16, &f, DTYPE_F32, 1);
    return r;
}

static bool is_nan(uint16_t bf16)
{
    return (bf16 & 0x7fff) > 0x7f80;
}

Test(fp8, every_byte_is_the_number_of_its_definition)
{
    static const float scales[] = { 1, 0x1p-100F, 3.3F, 0, INFINITY };
    const int64_t shape[] = { 1, 256 }, one[] = { 1, 1 };
    const struct box all = box_whole(2, shape);
    char room[513], *buf = room + 1; /* not aligned */
    struct fp8_grid g;

    cr_assert(fp8_grid_make(&g, 2, shape, 2, one));
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) {
        const struct fp8_run r = fp8_run_of(&g, 2, shape, &all);

        for (int b = 0; b < 256; b++)
            buf[256 + b] = (char)b;
        fp8_decode(buf, &g, &r, &scales[i], 0);
        for (unsigned b = 0; b < 256; b++) {
            const uint16_t want = rounded((float)e4m3(b) * scales[i]);
            uint16_t got;

            memcpy(&got, buf + (size_t)b * sizeof got, sizeof got);
            cr_expect(got == want || (is_nan(got) && is_nan(want)), "byte %u: %x, not %x", b, got,
                      want);
        }
    }
}

Test(fp8, scales_of_e8m0_are_powers_of_two)
{
    unsigned char bytes[256];
    float scales[256];

    for (int i = 0; i < 256; i++)
        bytes[i] = (unsigned char)i;
    fp8_scales_from_e8m0(scales, bytes, 256);
    for (int i = 0; i < 255; i++)
        cr_expect_eq(scales[i], (float)ldexp(1, i - 127), "%d", i);
    cr_expect(isnan(scales[255]));
}

Test(fp8, blocks_follow_from_the_shapes)
{
    static const struct {
        int64_t shape[3], scales[3], block_rows, block_cols; /* 0: refused */
        int ndim, scale_ndim;
    } cases[] = {
        { { 576, 7168 }, { 5, 56 }, 128, 128, 2, 2 }, /* DeepSeek-V3's kv_a_proj_with_mqa */
        { { 512, 256 }, { 512, 1 }, 1, 256, 2, 2 },   /* one for each row */
        { { 512, 256 }, { 512 }, 1, 256, 2, 1 },      /* the same */
        { { 512, 256 }, { 1 }, 512, 256, 2, 1 },      /* one for all */
        { { 512, 256 }, { 0 }, 512, 256, 2, 0 },      /* the same, a scalar */
        { { 64, 96 }, { 64, 3 }, 1, 32, 2, 2 },       /* MXFP8 */
        { { 192, 64 }, { 3, 2 }, 64, 32, 2, 2 },
        { { 8, 256, 384 }, { 8, 2, 3 }, 128, 128, 3, 3 },
        { { 1, 256, 384 }, { 0 }, 256, 384, 3, 0 },
        { { 8, 256, 384 }, { 0 }, 0, 0, 3, 0 },
        { { 8, 256, 384 }, { 4, 2, 3 }, 0, 0, 3, 3 },
        { { 96, 64 }, { 2, 1 }, 0, 0, 2, 2 }, /* 48, or 64 and a rest: nobody knows */
        { { 512, 256 }, { 0, 2 }, 0, 0, 2, 2 },
        { { 512, 256 }, { 256 }, 2, 256, 2, 1 },
        { { 512 }, { 4 }, 0, 0, 1, 1 },
        { { 0, 256 }, { 0, 2 }, 0, 0, 2, 2 },
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fp8_grid g = { 0 };
        const bool fits =
            fp8_grid_make(&g, cases[i].ndim, cases[i].shape, cases[i].scale_ndim, cases[i].scales);

        cr_expect_eq(fits, cases[i].block_rows > 0, "case %zu", i);
        if (fits) {
            cr_expect_eq(g.block_rows, cases[i].block_rows, "case %zu", i);
            cr_expect_eq(g.block_cols, cases[i].block_cols, "case %zu", i);
        }
    }
}

enum { SIDE_MAX = 300, MATRICES_MAX = 3 };

/* The number of the scale of an element. */
static int64_t scale_of(const struct fp8_grid *g, const int64_t *shape, int64_t at)
{
    const int64_t row = at / shape[2], col = at % shape[2];

    return (row / shape[1] * g->rows + row % shape[1] / g->block_rows) * g->cols +
           col / g->block_cols;
}

/* Decode a run and compare each element with its definition. */
static void check_run(const struct fp8_grid *g, const int64_t *shape, const unsigned char *elements,
                      const float *scales, const struct box *run)
{
    const struct box whole = box_whole(3, shape);
    const int64_t n = box_elements(run), begin = box_offset_in(&whole, run);
    const struct fp8_run r = fp8_run_of(g, 3, shape, run);
    uint16_t *buf = malloc((size_t)n * sizeof *buf);
    int64_t first, rows;

    cr_assert_not_null(buf);
    fp8_scale_rows(g, &r, &first, &rows);
    memcpy((char *)buf + n, elements + begin, (size_t)n);
    fp8_decode(buf, g, &r, scales + first * g->cols, first);
    for (int64_t i = 0; i < n; i++) {
        const int64_t s = scale_of(g, shape, begin + i);
        const bool is_there = s >= first * g->cols && s < (first + rows) * g->cols;

        cr_assert(is_there && buf[i] == rounded((float)e4m3(elements[begin + i]) * scales[s]),
                  "element %lld", (long long)i);
    }
    free(buf);
}

Test(fp8, any_run_has_the_numbers_of_its_blocks)
{
    struct rng r = rng_start("fp8");

    for (int i = 0; i < 60; i++) {
        const int64_t shape[] = { rng_int(&r, 1, MATRICES_MAX), rng_int(&r, 1, SIDE_MAX),
                                  rng_int(&r, 1, SIDE_MAX) };
        const int64_t grid[] = { shape[0], rng_int(&r, 0, 1) ? shape[1] : (shape[1] + 127) / 128,
                                 rng_int(&r, 0, 1) ? 1 : (shape[2] + 127) / 128 };
        const struct box whole = box_whole(3, shape);
        const int64_t n = box_elements(&whole), n_scales = grid[0] * grid[1] * grid[2];
        const int64_t most = rng_int(&r, 1, n), runs = box_run_count(&whole, most);
        unsigned char *elements = malloc((size_t)n);
        float *scales = malloc((size_t)n_scales * sizeof *scales);
        struct fp8_grid g;
        struct box run;

        cr_assert(elements && scales && fp8_grid_make(&g, 3, shape, 3, grid));
        for (int64_t k = 0; k < n; k++)
            elements[k] = (unsigned char)rng_int(&r, 0, 126);
        for (int64_t k = 0; k < n_scales; k++)
            scales[k] = (float)rng_real(&r);
        for (int k = 0; k < 4; k++) {
            box_run(&run, &whole, most, rng_int(&r, 0, runs - 1));
            check_run(&g, shape, elements, scales, &run);
        }
        free(elements);
        free(scales);
    }
}
