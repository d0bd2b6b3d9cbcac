/* ckpt/byte_shuffle.c - see ckpt/byte_shuffle.h. Each size has a loop of its own, which the
 * compiler turns into vector instructions. */
#include "ckpt/byte_shuffle.h"

#include <string.h>

enum { BLOCK = 2048 }; /* elements that stay in the first cache while their bytes are dealt */

static void shuffle2(unsigned char *restrict out, const unsigned char *restrict in, int64_t n)
{
    unsigned char *restrict high = out + n;

    for (int64_t i = 0; i < n; i++) {
        out[i] = in[2 * i];
        high[i] = in[2 * i + 1];
    }
}

/* Byte `at` of the elements of a block. */
static void pick(unsigned char *restrict out, const unsigned char *restrict in, int64_t n, int elem)
{
    if (elem == 4)
        for (int64_t i = 0; i < n; i++)
            out[i] = in[4 * i];
    else
        for (int64_t i = 0; i < n; i++)
            out[i] = in[8 * i];
}

void byte_shuffle(unsigned char *out, const unsigned char *in, int64_t n, int elem_bytes)
{
    if (elem_bytes == 1) {
        memcpy(out, in, (size_t)n);
        return;
    }
    if (elem_bytes == 2) {
        shuffle2(out, in, n);
        return;
    }
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t k = n - i < BLOCK ? n - i : BLOCK;

        for (int j = 0; j < elem_bytes; j++)
            pick(out + j * n + i, in + i * elem_bytes + j, k, elem_bytes);
    }
}

static void unshuffle2(unsigned char *restrict out, const unsigned char *restrict a,
                       const unsigned char *restrict b, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        out[2 * i] = a[i];
        out[2 * i + 1] = b[i];
    }
}

static void unshuffle4(unsigned char *restrict out, const unsigned char *restrict in, int64_t n,
                       int64_t all)
{
    const unsigned char *restrict a = in, *restrict b = in + all;
    const unsigned char *restrict c = in + 2 * all, *restrict d = in + 3 * all;

    for (int64_t i = 0; i < n; i++) {
        out[4 * i] = a[i];
        out[4 * i + 1] = b[i];
        out[4 * i + 2] = c[i];
        out[4 * i + 3] = d[i];
    }
}

void byte_unshuffle(unsigned char *out, const unsigned char *in, int64_t n, int64_t all,
                    int elem_bytes)
{
    if (elem_bytes == 1)
        memcpy(out, in, (size_t)n);
    else if (elem_bytes == 2)
        unshuffle2(out, in, in + all, n);
    else if (elem_bytes == 4)
        unshuffle4(out, in, n, all);
    else
        for (int64_t i = 0; i < n; i++)
            for (int j = 0; j < elem_bytes; j++)
                out[i * elem_bytes + j] = in[j * all + i];
}
