/*
 * ckpt/digest.c - see ckpt/digest.h.
 *
 * A run of consecutive elements is summed in blocks of BLOCK. Within a block, element j is
 * multiplied by r^j from a table whose entries are split into limbs of 21 bits. The product of an
 * element (at most 32 bits) and a limb has 53 bits, so 2048 products fit into a 64-bit lane, and
 * nothing is reduced before the block ends. The sum is then multiplied by the power at which the
 * block starts. AVX2 processes four elements at a time.
 */
#include "ckpt/digest.h"

#include <immintrin.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { BLOCK = 512, LIMBS = 3, LIMB_BITS = 21, POINTS = 2 };

#define PRIME     ((UINT64_C(1) << 61) - 1)
#define LIMB_MASK ((UINT64_C(1) << LIMB_BITS) - 1)

/* The first 61 bits of the fractional parts of the square roots of 2 and 3. */
static const uint64_t point[POINTS] = { 0x0d413cccfe779921, 0x176cf5d0b09954e7 };

/* Powers of the points; computed once (make_table) and constant from then on. */
static struct {
    uint64_t limb[POINTS][LIMBS][BLOCK]; /* of r^j */
    uint64_t prefix[POINTS][BLOCK + 1];  /* sum of r^0 .. r^(n-1) */
    uint64_t square[POINTS][64];         /* r^(2^k) */
} table;

static uint64_t add(uint64_t a, uint64_t b)
{
    uint64_t s = a + b;

    return s >= PRIME ? s - PRIME : s;
}

/* Any 128-bit number modulo the prime, for which 2^61 is 1. */
static uint64_t reduce(unsigned __int128 x)
{
    uint64_t s = (uint64_t)(x & PRIME) + (uint64_t)((x >> 61) & PRIME) + (uint64_t)(x >> 122);

    s = (s & PRIME) + (s >> 61);
    return s >= PRIME ? s - PRIME : s;
}

static uint64_t multiply(uint64_t a, uint64_t b)
{
    return reduce((unsigned __int128)a * b);
}

static void make_table(void)
{
    for (int p = 0; p < POINTS; p++) {
        uint64_t power = 1, sum = 0;

        for (int j = 0; j < BLOCK; j++) {
            for (int l = 0; l < LIMBS; l++)
                table.limb[p][l][j] = power >> (l * LIMB_BITS) & LIMB_MASK;
            table.prefix[p][j] = sum;
            sum = add(sum, power);
            power = multiply(power, point[p]);
        }
        table.prefix[p][BLOCK] = sum;
        table.square[p][0] = point[p];
        for (int k = 1; k < 64; k++)
            table.square[p][k] = multiply(table.square[p][k - 1], table.square[p][k - 1]);
    }
}

static uint64_t power_of(int p, uint64_t exponent)
{
    uint64_t result = 1;

    for (int k = 0; exponent; k++, exponent >>= 1)
        if (exponent & 1)
            result = multiply(result, table.square[p][k]);
    return result;
}

static uint32_t load(const unsigned char *p, int elem_bytes)
{
    uint32_t v32;
    uint16_t v16;

    switch (elem_bytes) {
    case 1:
        return *p;
    case 2:
        memcpy(&v16, p, 2);
        return v16;
    default:
        memcpy(&v32, p, 4);
        return v32;
    }
}

/* sum[p][l] += sum of element j times limb l of r_p^j, for j from `from` to n - 1 < BLOCK. */
static void sum_plain(uint64_t sum[POINTS][LIMBS], const unsigned char *data, int elem_bytes,
                      int from, int n)
{
    for (int j = from; j < n; j++) {
        uint64_t v = load(data + (size_t)j * (size_t)elem_bytes, elem_bytes);

        for (int p = 0; p < POINTS; p++)
            for (int l = 0; l < LIMBS; l++)
                sum[p][l] += v * table.limb[p][l][j];
    }
}

__attribute__((target("avx2"), always_inline)) static inline __m256i load4(
    const unsigned char *data, int elem_bytes)
{
    int32_t four;

    if (elem_bytes == 4)
        return _mm256_cvtepu32_epi64(_mm_loadu_si128((const __m128i *)data));
    if (elem_bytes == 2)
        return _mm256_cvtepu16_epi64(_mm_loadl_epi64((const __m128i *)data));
    memcpy(&four, data, 4);
    return _mm256_cvtepu8_epi64(_mm_cvtsi32_si128(four));
}

__attribute__((target("avx2"), always_inline)) static inline int sum_avx2_of(
    uint64_t sum[POINTS][LIMBS], const unsigned char *data, const int elem_bytes, int n)
{
    __m256i acc[POINTS][LIMBS];
    int j = 0;

    memset(acc, 0, sizeof acc);
    for (; j + 4 <= n; j += 4) {
        __m256i v = load4(data + (size_t)j * (size_t)elem_bytes, elem_bytes);

        for (int p = 0; p < POINTS; p++)
            for (int l = 0; l < LIMBS; l++) {
                const __m256i *limb = (const __m256i *)&table.limb[p][l][j];

                acc[p][l] =
                    _mm256_add_epi64(acc[p][l], _mm256_mul_epu32(v, _mm256_loadu_si256(limb)));
            }
    }
    for (int p = 0; p < POINTS; p++)
        for (int l = 0; l < LIMBS; l++) {
            uint64_t lane[4];

            _mm256_storeu_si256((__m256i *)lane, acc[p][l]);
            sum[p][l] = lane[0] + lane[1] + lane[2] + lane[3];
        }
    return j;
}

/* The same for all groups of four elements; returns how many elements they have. */
__attribute__((target("avx2"))) static int sum_avx2(uint64_t sum[POINTS][LIMBS],
                                                    const unsigned char *data, int elem_bytes,
                                                    int n)
{
    switch (elem_bytes) {
    case 1:
        return sum_avx2_of(sum, data, 1, n);
    case 2:
        return sum_avx2_of(sum, data, 2, n);
    default:
        return sum_avx2_of(sum, data, 4, n);
    }
}

/* Add n <= BLOCK elements, of which the first is multiplied by `start` at each point. */
static void add_block(struct digest *d, const unsigned char *data, int elem_bytes, int n,
                      const uint64_t start[POINTS], bool avx2)
{
    uint64_t sum[POINTS][LIMBS] = { 0 };
    int done = avx2 ? sum_avx2(sum, data, elem_bytes, n) : 0;

    sum_plain(sum, data, elem_bytes, done, n);
    for (int p = 0; p < POINTS; p++) {
        unsigned __int128 whole = sum[p][0];

        whole += (unsigned __int128)sum[p][1] << LIMB_BITS;
        whole += (unsigned __int128)sum[p][2] << (2 * LIMB_BITS);
        whole += table.prefix[p][n]; /* the 1 that is added to every element */
        d->d[p] = add(d->d[p], multiply(reduce(whole), start[p]));
    }
}

/* A walk over the rows of a box. */
struct digest_walk {
    const unsigned char *data; /* next row */
    const struct box *box;
    int elem_bytes;
    bool avx2;
    uint64_t step[BOX_NDIM_MAX][POINTS]; /* factor of each point for one index more on an axis */
    struct digest sum;
};

static void walk_row(struct digest_walk *w, int64_t n, const uint64_t start[POINTS])
{
    uint64_t power[POINTS] = { start[0], start[1] };

    while (n > 0) {
        int part = n < BLOCK ? (int)n : BLOCK;

        add_block(&w->sum, w->data, w->elem_bytes, part, power, w->avx2);
        w->data += (size_t)part * (size_t)w->elem_bytes;
        n -= part;
        if (n > 0)
            for (int p = 0; p < POINTS; p++) /* square[9] is r^BLOCK */
                power[p] = multiply(power[p], table.square[p][9]);
    }
}

/* The rows of axes `axis` and later; from axis `last` on, elements are consecutive. */
static void walk_axis(struct digest_walk *w, int axis, int last, int64_t run,
                      const uint64_t start[POINTS])
{
    uint64_t power[POINTS] = { start[0], start[1] };

    if (axis >= last) {
        walk_row(w, run, start);
        return;
    }
    for (int64_t i = 0; i < w->box->len[axis]; i++) {
        walk_axis(w, axis + 1, last, run, power);
        for (int p = 0; p < POINTS; p++)
            power[p] = multiply(power[p], w->step[axis][p]);
    }
}

/* Treat 8-byte elements as pairs of 4-byte elements: the last axis becomes twice as long. */
static void halve_elements(struct box *box, int64_t shape[BOX_NDIM_MAX])
{
    int last = box->ndim - 1;

    if (box->ndim == 0) {
        box->ndim = 1;
        box->lo[0] = 0;
        box->len[0] = shape[0] = 2;
        return;
    }
    box->lo[last] *= 2;
    box->len[last] *= 2;
    shape[last] *= 2;
}

struct digest digest_box(const void *data, const struct box *box, int ndim, const int64_t *shape,
                         int elem_bytes)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct box b = *box;
    struct digest_walk w = { .data = data,
                             .box = &b,
                             .elem_bytes = elem_bytes == 8 ? 4 : elem_bytes };
    int64_t full[BOX_NDIM_MAX] = { 0 }, stride = 1, first = 0, run = 1;
    uint64_t start[POINTS];
    int last;

    pthread_once(&once, make_table);
    if (box_is_empty(box))
        return w.sum;
    w.avx2 = __builtin_cpu_supports("avx2");
    for (int d = 0; d < ndim; d++)
        full[d] = shape[d];
    if (elem_bytes == 8)
        halve_elements(&b, full);
    /* axes after `last` are whole, so a range on `last` is one run of consecutive elements */
    for (last = b.ndim - 1; last > 0 && b.len[last] == full[last]; last--)
        ;
    for (int d = b.ndim - 1; d >= 0; d--) {
        for (int p = 0; p < POINTS; p++)
            w.step[d][p] = power_of(p, (uint64_t)stride);
        first += b.lo[d] * stride;
        stride *= full[d];
        if (d >= last)
            run *= b.len[d];
    }
    for (int p = 0; p < POINTS; p++)
        start[p] = power_of(p, (uint64_t)first);
    walk_axis(&w, 0, last, run, start);
    return w.sum;
}

void digest_add(struct digest *sum, const struct digest *part)
{
    for (int p = 0; p < POINTS; p++)
        sum->d[p] = add(sum->d[p], part->d[p]);
}

char *digest_format(char buf[DIGEST_TEXT_MAX], const struct digest *d)
{
    snprintf(buf, DIGEST_TEXT_MAX, "%016llx%016llx", (unsigned long long)d->d[0],
             (unsigned long long)d->d[1]);
    return buf;
}
