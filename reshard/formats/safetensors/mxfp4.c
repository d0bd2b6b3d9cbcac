/* reshard/formats/safetensors/mxfp4.c - see reshard/formats/safetensors/mxfp4.h. */
#include "reshard/formats/safetensors/mxfp4.h"

#include <string.h>

#include "reshard/formats/safetensors/fp8.h"

enum { TILE = MXFP4_GROUP, F32_TO_BF16 = 16 };

struct mxfp4_part mxfp4_part_of(const struct mxfp4_blocks *b, int64_t at, int64_t n)
{
    const int64_t width = b->groups * MXFP4_GROUP, line = at / b->rows;
    struct mxfp4_part p = { .matrix = line / width,
                            .row = at % b->rows,
                            .rows = b->rows - at % b->rows,
                            .first = line % width,
                            .count = 1 };

    if (n < p.rows)
        p.rows = n;
    else if (p.row == 0)
        p.count = n / b->rows < width - p.first ? n / b->rows : width - p.first;
    return p;
}

/* A product has at most two bits of mantissa, so the upper half of f32 is exact. */
static uint16_t upper_half(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)(bits >> F32_TO_BF16);
}

/* A group of a row, as column k of a tile. */
static void decode_group(uint16_t tile[TILE][TILE], int k, const unsigned char *bytes,
                         unsigned char scale)
{
    static const float numbers[] = { 0,     0.5F,  1,  1.5F,  2,  3,  4,  6,
                                     -0.0F, -0.5F, -1, -1.5F, -2, -3, -4, -6 };
    uint16_t products[sizeof numbers / sizeof *numbers];
    float factor;

    fp8_scales_from_e8m0(&factor, &scale, 1);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        products[i] = upper_half(numbers[i] * factor);
    for (int i = 0; i < MXFP4_GROUP_BYTES; i++) {
        tile[2 * i][k] = products[bytes[i] & 0xf];
        tile[2 * i + 1][k] = products[bytes[i] >> 4];
    }
}

/* A group of at most TILE rows from `row` on: its elements of the part go to their places. */
static void decode_tile(char *to, int64_t stride, const struct mxfp4_rows *r, int64_t row,
                        int64_t group)
{
    const int64_t begin = group * MXFP4_GROUP, end = begin + MXFP4_GROUP;
    const int64_t lo = begin < r->skip ? r->skip : begin;
    const int64_t hi = end < r->skip + r->count ? end : r->skip + r->count;
    const int n = (int)(r->rows - row < TILE ? r->rows - row : TILE);
    uint16_t tile[TILE][TILE];

    for (int k = 0; k < n; k++)
        decode_group(tile, k, r->blocks + (row + k) * r->block_stride + group * MXFP4_GROUP_BYTES,
                     r->scales[(row + k) * r->scale_stride + group]);
    for (int64_t i = lo; i < hi; i++)
        memcpy(to + ((i - r->skip) * stride + row) * (int64_t)sizeof **tile, tile[i - begin],
               (size_t)n * sizeof **tile);
}

void mxfp4_decode(void *to, int64_t stride, const struct mxfp4_rows *r)
{
    for (int64_t row = 0; row < r->rows; row += TILE)
        for (int64_t group = r->skip / MXFP4_GROUP; group * MXFP4_GROUP < r->skip + r->count;
             group++)
            decode_tile(to, stride, r, row, group);
}
