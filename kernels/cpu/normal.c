/* kernels/cpu/normal.c - see kernels/normal.h.
 *
 * Polynomials that vectorise give a product whose relative error is below 2^-41. It is rounded to
 * float, as the exact result is. Both round to the same float unless a point halfway between two
 * floats lies between them, so a product within 2^-40 of such a point is computed again with the C
 * library: one of 2^15. So are numbers for which the bound does not hold, one of 400. (Ziv's test;
 * Muller et al., Handbook of Floating-Point Arithmetic, 2018, 10.6.) */
#include "kernels/normal.h"

#include <math.h>

#include "kernels/cpu/vec.h"

enum { BLOCK = 256 };

static const uint64_t STEP = UINT64_C(0x9e3779b97f4a7c15);
static const double TWO_PI = 6.283185307179586476925286766559;

VEC_INLINE uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

uint64_t normal_mix(uint64_t x)
{
    return mix(x);
}

VEC_INLINE double double_of(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

VEC_INLINE uint64_t bits_of(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

/* n <= 2^53, exact. Before AVX-512 processors have no such conversion of vectors: each half becomes
 * the last bits of a large number, which is then subtracted. */
VEC_INLINE double from_integer(uint64_t n)
{
    double high = double_of(n >> 32 | UINT64_C(0x4530000000000000)) - 0x1p84;
    double low = double_of((n & 0xffffffff) | UINT64_C(0x4330000000000000)) - 0x1p52;

    return high + low;
}

/* Numbers 2 index and 2 index + 1 of the sequence of `key`: u in (0, 1] and v in [0, 1). */
VEC_INLINE double uniform_u(uint64_t key, int64_t index)
{
    return from_integer((mix(key + (2 * (uint64_t)index + 1) * STEP) >> 11) + 1) * 0x1p-53;
}

VEC_INLINE double uniform_v(uint64_t key, int64_t index)
{
    return from_integer(mix(key + (2 * (uint64_t)index + 2) * STEP) >> 11) * 0x1p-53;
}

double normal_value(uint64_t key, int64_t index)
{
    return sqrt(-2 * log(uniform_u(key, index))) * cos(TWO_PI * uniform_v(key, index));
}

/* log(u) for u in (0, 1], within 2^-48 of itself. u = 2^k m with m from sqrt(1/2) to sqrt(2), and
 * log(m) = 2 artanh(s), s = (m - 1) / (m + 1), whose series has s^2 <= 0.0295. */
VEC_INLINE double fast_log(double u)
{
    const uint64_t root = UINT64_C(0x3fe6a09e667f3bcd), one = UINT64_C(0x3ff0000000000000);
    const double ln2 = 0.693147180559945309417232121458;
    uint64_t t = bits_of(u) + (one - root);
    double k = double_of(t >> 52 | UINT64_C(0x4330000000000000)) - (0x1p52 + 1023);
    double m = double_of((t & UINT64_C(0x000fffffffffffff)) + root);
    double s = (m - 1) / (m + 1), z = s * s, p = 1.0 / 17;

    p = p * z + 1.0 / 15;
    p = p * z + 1.0 / 13;
    p = p * z + 1.0 / 11;
    p = p * z + 1.0 / 9;
    p = p * z + 1.0 / 7;
    p = p * z + 1.0 / 5;
    p = p * z + 1.0 / 3;
    return k * ln2 + 2 * (s + s * z * p);
}

/* cos(2 pi v) for v in [0, 1), within 2^-49 of 1: the sine of an angle from -pi / 2 to pi / 2,
 * whose part of a turn is exact. Taylor's series to the 19th power. */
VEC_INLINE double fast_cos(double v)
{
    double x = TWO_PI * (fabs(v - 0.5) - 0.25), z = x * x, p = -1.0 / 121645100408832000.0;

    p = p * z + 1.0 / 355687428096000.0;
    p = p * z - 1.0 / 1307674368000.0;
    p = p * z + 1.0 / 6227020800.0;
    p = p * z - 1.0 / 39916800.0;
    p = p * z + 1.0 / 362880.0;
    p = p * z - 1.0 / 5040.0;
    p = p * z + 1.0 / 120.0;
    p = p * z - 1.0 / 6.0;
    return x + x * z * p;
}

/* Whether the float next to y may be another than that of the C library's functions. cosine: near
 * its zeros its relative error is larger, because the C library's angle is rounded. */
VEC_INLINE uint64_t is_uncertain(double y, double cosine)
{
    const uint64_t halfway = 1 << 28, near = 1 << 13; /* of the 2^29 doubles from float to float */
    const double smallest = 0x1p-120;                 /* floats below 2^-126 have fewer bits */
    uint64_t from_halfway = (bits_of(y) + halfway + near) & ((halfway << 1) - 1);

    return (from_halfway <= 2 * near) | (fabs(cosine) < 0x1p-8) | !(fabs(y) > smallest);
}

KERNEL_CLONES
static void fill_block(float *restrict out, uint64_t *restrict uncertain, int n, double std,
                       uint64_t key, int64_t first)
{
    for (int i = 0; i < n; i++) {
        double cosine = fast_cos(uniform_v(key, first + i));
        double y = std * (sqrt(-2 * fast_log(uniform_u(key, first + i))) * cosine);

        out[i] = (float)y;
        uncertain[i] = is_uncertain(y, cosine);
    }
}

void normal_fill(float *out, int64_t n, double std, uint64_t key, int64_t first)
{
    uint64_t uncertain[BLOCK];

    for (int64_t at = 0; at < n; at += BLOCK) {
        int m = n - at < BLOCK ? (int)(n - at) : BLOCK;

        fill_block(out + at, uncertain, m, std, key, first + at);
        for (int i = 0; i < m; i++)
            if (uncertain[i])
                out[at + i] = (float)(std * normal_value(key, first + at + i));
    }
}
