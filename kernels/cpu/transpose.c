/* kernels/cpu/transpose.c - see kernels/cpu/transpose.h. */
#include "kernels/cpu/transpose.h"

#include <string.h>

#include "kernels/cpu/vec.h"

enum { LANES = TRANSPOSE_LANES };

/* A square is transposed by four perfect shuffles: each interleaves the rows of the upper half with
 * those of the lower, so that an element's row and column bits rotate by one. */
#define SHUFFLE(to, from)                                                                          \
    for (int i = 0; i < LANES / 2; i++) {                                                          \
        (to)[2 * i] = __builtin_shufflevector((from)[i], (from)[i + LANES / 2], 0, 16, 1, 17, 2,   \
                                              18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);              \
        (to)[2 * i + 1] = __builtin_shufflevector((from)[i], (from)[i + LANES / 2], 8, 24, 9, 25,  \
                                                  10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31); \
    }

/* Squares at the edges are filled with zeroes.
 * NOLINTBEGIN(bugprone-macro-parentheses): a type cannot stand in parentheses. */
#define TRANSPOSE(name, element)                                                             \
    typedef element name##_row __attribute__((vector_size(LANES * sizeof(element))));        \
                                                                                             \
    static KERNEL_CLONES void name##_square(element *y, int64_t ld_y, const element *x,      \
                                            int64_t ld_x, int64_t height, int64_t width)     \
    {                                                                                        \
        name##_row a[LANES], b[LANES];                                                       \
        memset(a, 0, sizeof a);                                                              \
        if (height == LANES && width == LANES)                                               \
            for (int64_t i = 0; i < LANES; i++)                                              \
                memcpy(&a[i], x + i * ld_x, sizeof a[i]);                                    \
        else                                                                                 \
            for (int64_t i = 0; i < height; i++)                                             \
                memcpy(&a[i], x + i * ld_x, (size_t)width * sizeof(element));                \
        SHUFFLE(b, a)                                                                        \
        SHUFFLE(a, b)                                                                        \
        SHUFFLE(b, a)                                                                        \
        SHUFFLE(a, b)                                                                        \
        for (int64_t j = 0; j < width; j++)                                                  \
            memcpy(y + j * ld_y, &a[j], sizeof a[j]);                                        \
    }                                                                                        \
                                                                                             \
    static void name(element *y, int64_t ld_y, const element *x, int64_t ld_x, int64_t rows, \
                     int64_t cols)                                                           \
    {                                                                                        \
        for (int64_t r = 0; r < rows; r += LANES)                                            \
            for (int64_t c = 0; c < cols; c += LANES)                                        \
                name##_square(y + c * ld_y + r, ld_y, x + r * ld_x + c, ld_x,                \
                              rows - r < LANES ? rows - r : LANES,                           \
                              cols - c < LANES ? cols - c : LANES);                          \
    }

/* NOLINTEND(bugprone-macro-parentheses) */
TRANSPOSE(transpose_32, uint32_t)
TRANSPOSE(transpose_16, uint16_t)

void transpose(void *y, int64_t ld_y, const void *x, int64_t ld_x, int64_t rows, int64_t cols,
               int elem_bytes)
{
    if (elem_bytes == 4)
        transpose_32(y, ld_y, x, ld_x, rows, cols);
    else
        transpose_16(y, ld_y, x, ld_x, rows, cols);
}
