/* reshard/formats/safetensors/fp8.c - see reshard/formats/safetensors/fp8.h. */
#include "reshard/formats/safetensors/fp8.h"

#include <math.h>
#include <string.h>

#include "kernels/cast.h"

enum {
    BLOCK = 128,     /* of almost all models */
    E8M0_BIAS = 127, /* of the exponent */
    E8M0_NAN = 0xff, /* the byte that is not a number */
    E4M3_NAN = 0x7f, /* without the sign */
    E4M3_SIGN = 0x80,
    E4M3_SHIFT = 20, /* from the bits of e4m3 to those of f32 */
    SIGN_SHIFT = 24,
    F32_NAN = 0x7fc00000, /* as bits */
};

/* What the exponent of f32 lacks when it has the bits of one of e4m3; it puts subnormals right
 * too. */
#define E4M3_SCALE 0x1p120F

/* ---- blocks ---- */

/* Elements of an axis that share a scale; 0: the axis cannot be divided so. */
static int64_t block_of(int64_t elements, int64_t scales)
{
    const int64_t each = scales > 0 ? elements / scales : 0;

    if (scales == 1)
        return elements > 0 ? elements : 1;
    if (scales > 0 && (elements + BLOCK - 1) / BLOCK == scales)
        return BLOCK;
    return each > 0 && each * scales == elements && (each & (each - 1)) == 0 ? each : 0;
}

static int64_t product(int n, const int64_t *factors)
{
    int64_t p = 1;

    for (int i = 0; i < n; i++)
        p *= factors[i];
    return p;
}

bool fp8_grid_make(struct fp8_grid *g, int ndim, const int64_t *shape, int scale_ndim,
                   const int64_t *scale_shape)
{
    if (ndim < 2)
        return false;
    *g = (struct fp8_grid){
        .matrix_rows = shape[ndim - 2], .columns = shape[ndim - 1], .rows = 1, .cols = 1
    };
    if (scale_ndim == ndim) {
        if (memcmp(shape, scale_shape, (size_t)(ndim - 2) * sizeof *shape) != 0)
            return false;
        g->rows = scale_shape[ndim - 2];
        g->cols = scale_shape[ndim - 1];
    } else if (ndim == 2 && scale_ndim == 1) {
        g->rows = scale_shape[0];
    } else if (scale_ndim != 0 || product(ndim - 2, shape) != 1) {
        return false;
    }
    g->block_rows = block_of(g->matrix_rows, g->rows);
    g->block_cols = block_of(g->columns, g->cols);
    return g->block_rows > 0 && g->block_cols > 0;
}

/* ---- runs ---- */

struct fp8_run fp8_run_of(const struct fp8_grid *g, int ndim, const int64_t *shape,
                          const struct box *run)
{
    const struct box whole = box_whole(ndim, shape);
    const int64_t begin = box_offset_in(&whole, run), cols = run->len[ndim - 1];

    return (struct fp8_run){ begin / g->columns, box_elements(run) / cols, begin % g->columns,
                             cols };
}

/* The row of scales of a row of the weight. */
static int64_t scale_row(const struct fp8_grid *g, int64_t row)
{
    return row / g->matrix_rows * g->rows + row % g->matrix_rows / g->block_rows;
}

void fp8_scale_rows(const struct fp8_grid *g, const struct fp8_run *r, int64_t *first, int64_t *n)
{
    *first = scale_row(g, r->row);
    *n = scale_row(g, r->row + r->rows - 1) - *first + 1;
}

void fp8_scales_from_e8m0(float *to, const unsigned char *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = from[i] == E8M0_NAN ? NAN : ldexpf(1, from[i] - E8M0_BIAS);
}

/* ---- decoding ---- */

/* Loops of constant length, without branches, which compilers vectorize. */
static void multiply_block(uint16_t to[BLOCK], const unsigned char from[BLOCK], float scale)
{
    uint32_t bits[BLOCK];
    float products[BLOCK];

    for (int i = 0; i < BLOCK; i++) {
        const uint32_t e = from[i], rest = e & E4M3_NAN;

        bits[i] = rest << E4M3_SHIFT | (e & E4M3_SIGN) << SIGN_SHIFT;
        bits[i] |= (uint32_t)(rest == E4M3_NAN) * F32_NAN;
    }
    memcpy(products, bits, sizeof products);
    for (int i = 0; i < BLOCK; i++)
        products[i] = products[i] * E4M3_SCALE * scale;
    cast(to, DTYPE_BF16, products, DTYPE_F32, BLOCK);
}

/* n elements with one scale. `to` may overlap `from`, if it does not pass it. */
static void decode(char *to, const unsigned char *from, int64_t n, float scale)
{
    unsigned char elements[BLOCK] = { 0 };
    uint16_t weights[BLOCK];

    for (int64_t at = 0; at < n; at += BLOCK) {
        const size_t part = (size_t)(n - at < BLOCK ? n - at : BLOCK);

        memcpy(elements, from + at, part);
        multiply_block(weights, elements, scale);
        memcpy(to + at * (int64_t)sizeof *weights, weights, part * sizeof *weights);
    }
}

void fp8_decode(void *buf, const struct fp8_grid *g, const struct fp8_run *r, const float *scales,
                int64_t first_scale)
{
    const unsigned char *from = (unsigned char *)buf + r->rows * r->cols;
    char *to = buf;

    for (int64_t i = 0; i < r->rows; i++) {
        const float *row = scales + (scale_row(g, r->row + i) - first_scale) * g->cols;

        for (int64_t col = r->col, end = col + r->cols, n; col < end; col += n) {
            const int64_t block = col / g->block_cols;

            n = (block + 1) * g->block_cols - col;
            n = n < end - col ? n : end - col;
            decode(to, from, n, row[block]);
            from += n;
            to += n * (int64_t)sizeof(uint16_t);
        }
    }
}
