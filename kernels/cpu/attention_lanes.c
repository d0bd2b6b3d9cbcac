/* kernels/cpu/attention_lanes.c - see kernels/cpu/attention_lanes.h. */
#include "kernels/cpu/attention_lanes.h"

#ifdef __x86_64__

#include <immintrin.h>

#include "kernels/cpu/avx512.h"

enum { BLOCK = ATTENTION_BLOCK, LANES = 16 };

/* 2^x to within 2 units in the last place of a float, for x up to 127; 0 below -126, NaN of NaN. A
 * polynomial of degree 6 on [-1/2, 1/2]. No result is subnormal: the products would take it for 0,
 * and on Intel's processors each one costs more than a hundred cycles. */
AVX512_BF16 static inline __attribute__((always_inline)) __m512 power_of_two(__m512 x)
{
    const __m512 least = _mm512_set1_ps(-126); /* the second operand of max is kept if it is NaN */
    __mmask16 is_normal = _mm512_cmp_ps_mask(x, least, _CMP_NLT_UQ);
    __m512 c = _mm512_max_ps(least, x);
    __m512 n = _mm512_roundscale_ps(c, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 r = _mm512_sub_ps(c, n);
    __m512 y = _mm512_set1_ps(0x1.446c7ep-13f);

    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(0x1.5f48c8p-10f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(0x1.3b29d8p-7f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(0x1.c6aeccp-5f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(0x1.ebfbep-3f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(0x1.62e43p-1f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1));
    return _mm512_maskz_scalef_ps(is_normal, y, n);
}

/* The lanes of vector `at` whose query row sees key k. */
static inline __attribute__((always_inline)) __mmask16 seen(int64_t k, int64_t at, bool causal)
{
    int64_t hidden = causal ? k - at : 0;

    return hidden <= 0 ? 0xffff : hidden >= LANES ? 0 : (__mmask16)(0xffffu << hidden);
}

AVX512_BF16 static inline __attribute__((always_inline)) void put_pair(uint32_t *y, __m512 low,
                                                                       __m512 high)
{
    const __m512i order =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    __m512i both = (__m512i)_mm512_cvtne2ps_pbh(high, low);

    _mm512_storeu_si512(y, _mm512_permutexvar_epi16(order, both));
}

AVX512_BF16 static inline __attribute__((always_inline)) void put_row(uint16_t *y, __m512 x)
{
    _mm256_storeu_si256((__m256i *)(void *)y, (__m256i)_mm512_cvtneps_pbh(x));
}

AVX512_BF16 static void softmax_vector(uint32_t *pairs, const float *s, int64_t keys, bool causal,
                                       int64_t at, __m512 *max, __m512 *sum, __m512 *shrink)
{
    const __m512 none = _mm512_set1_ps(-__builtin_inff());
    __m512 before = *max, m = before, total;

    for (int64_t k = 0; k < keys; k++)
        m = _mm512_mask_max_ps(m, seen(k, at, causal), m, _mm512_loadu_ps(s + k * BLOCK + at));
    *shrink = power_of_two(_mm512_sub_ps(before, m));
    total = _mm512_mul_ps(*sum, *shrink);
    for (int64_t k = 0; k < keys; k += 2) {
        __mmask16 second = k + 1 < keys ? seen(k + 1, at, causal) : 0;
        __m512 a = _mm512_mask_loadu_ps(none, seen(k, at, causal), s + k * BLOCK + at);
        __m512 b = _mm512_mask_loadu_ps(none, second, s + (k + 1) * BLOCK + at);
        a = power_of_two(_mm512_sub_ps(a, m));
        b = power_of_two(_mm512_sub_ps(b, m));
        total = _mm512_add_ps(_mm512_add_ps(total, a), b);
        put_pair(pairs + k / 2 * BLOCK + at, a, b);
    }
    *max = m;
    *sum = total;
}

AVX512_BF16 void attention_lanes_softmax(uint32_t *pairs, const float *s, int64_t keys, bool causal,
                                         attention_lanes max, attention_lanes sum,
                                         attention_lanes shrink)
{
    for (int64_t at = 0; at < BLOCK; at += LANES) {
        __m512 m = _mm512_loadu_ps(max + at), t = _mm512_loadu_ps(sum + at), by;
        softmax_vector(pairs, s, keys, causal, at, &m, &t, &by);
        _mm512_storeu_ps(max + at, m);
        _mm512_storeu_ps(sum + at, t);
        _mm512_storeu_ps(shrink + at, by);
    }
}

AVX512_BF16 void attention_lanes_scale(float *x, int64_t n, const attention_lanes by)
{
    for (int64_t at = 0; at < BLOCK; at += LANES) {
        __m512 factor = _mm512_loadu_ps(by + at);
        for (int64_t i = 0; i < n; i++)
            _mm512_storeu_ps(x + i * BLOCK + at,
                             _mm512_mul_ps(factor, _mm512_loadu_ps(x + i * BLOCK + at)));
    }
}

AVX512_BF16 void attention_lanes_probabilities(float *s, uint16_t *rows, int64_t keys, bool causal,
                                               const attention_lanes lse)
{
    const __m512 none = _mm512_set1_ps(-__builtin_inff());

    for (int64_t k = 0; k < keys; k++)
        for (int64_t at = 0; at < BLOCK; at += LANES) {
            float *x = s + k * BLOCK + at;
            __m512 y = _mm512_mask_loadu_ps(none, seen(k, at, causal), x);
            y = power_of_two(_mm512_sub_ps(y, _mm512_loadu_ps(lse + at)));
            _mm512_storeu_ps(x, y);
            put_row(rows + k * BLOCK + at, y);
        }
}

AVX512_BF16 void attention_lanes_gradient(uint32_t *pairs, uint16_t *rows, const float *p,
                                          const float *dp, int64_t keys,
                                          const attention_lanes delta)
{
    for (int64_t k = 0; k < keys; k += 2)
        for (int64_t at = 0; at < BLOCK; at += LANES) {
            int64_t i = k * BLOCK + at, next = k + 1 < keys ? i + BLOCK : i;
            __m512 d = _mm512_loadu_ps(delta + at), a, b;
            a = _mm512_mul_ps(_mm512_loadu_ps(p + i), _mm512_sub_ps(_mm512_loadu_ps(dp + i), d));
            b = _mm512_mul_ps(_mm512_loadu_ps(p + next),
                              _mm512_sub_ps(_mm512_loadu_ps(dp + next), d));
            put_row(rows + i, a);
            if (next != i)
                put_row(rows + next, b);
            put_pair(pairs + k / 2 * BLOCK + at, a, next != i ? b : _mm512_setzero_ps());
        }
}

#endif
