/* tests/unit/kernels_cast.c - conversions against exact arithmetic on the value, bit for bit. */
#include "kernels/cast.h"

#include "kernels/cpu/vec.h"
#include "tests/unit/kernels_support.h"

/* A binary format: mantissa bits stored, smallest normal and largest exponents. */
struct format {
    int mantissa, min_exponent, max_exponent;
};

static struct format format_of(enum dtype t)
{
    const struct format f32 = { 23, -126, 127 }, bf16 = { 7, -126, 127 }, f16 = { 10, -14, 15 },
                        f64 = { 52, -1022, 1023 };
    return t == DTYPE_F32 ? f32 : t == DTYPE_BF16 ? bf16 : t == DTYPE_F16 ? f16 : f64;
}

/* The nearest value of the format, ties to even, with one rounding: scale so that the last place is
 * 1, call rint, scale back. */
static double rounded(double x, enum dtype t)
{
    struct format f = format_of(t);
    int exponent;
    double y;

    if (x == 0 || isnan(x) || isinf(x) || t == DTYPE_F64)
        return x;
    frexp(x, &exponent);
    exponent -= 1;
    if (exponent < f.min_exponent)
        exponent = f.min_exponent;
    y = ldexp(rint(ldexp(x, f.mantissa - exponent)), exponent - f.mantissa);
    return fabs(y) >= ldexp(1, f.max_exponent + 1) ? copysign(INFINITY, x) : y;
}

/* The value of element i, decoded from its bit fields without the code under test. */
static double value(const void *p, enum dtype t, int64_t i)
{
    if (t == DTYPE_F64)
        return ((const double *)p)[i];
    if (t == DTYPE_F32)
        return (double)((const float *)p)[i];
    struct format f = format_of(t);
    uint16_t h = ((const uint16_t *)p)[i];
    int bits = 15 - f.mantissa, exponent = h >> f.mantissa & ((1 << bits) - 1);
    int mantissa = h & ((1 << f.mantissa) - 1);
    double sign = h & 0x8000 ? -1 : 1;

    if (exponent == (1 << bits) - 1)
        return mantissa ? NAN : sign * INFINITY;
    return exponent ? sign * ldexp(mantissa + (1 << f.mantissa),
                                   exponent - 1 + f.min_exponent - f.mantissa)
                    : sign * ldexp(mantissa, f.min_exponent - f.mantissa);
}

static void check(void *dst, enum dtype to, const void *src, enum dtype from, int64_t n)
{
    if (kernels_queue)
        RUN(cast, cast, dst, to, src, from, n);
    else
        cast(dst, to, src, from, n);
    for (int64_t i = 0; i < n; i++) {
        double x = value(src, from, i), want = rounded(x, to), got = value(dst, to, i);
        cr_assert(isnan(want) ? isnan(got) : want == got && !signbit(want) == !signbit(got),
                  "%s to %s of %a: got %a, want %a", dtype_name(from), dtype_name(to), x, got,
                  want);
    }
}

/* Every pattern of a 16-bit type, or random values of a wider type: uniform bits, values in the
 * range of narrower types, and midpoints between two values of a narrower type. */
static int64_t fill(struct rng *r, void *src, enum dtype t, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint64_t bits = rng_next(r);
        double x = ldexp(rng_real(r), (int)rng_int(r, -30, 20));
        int kind = (int)rng_int(r, 0, 3);

        if (dtype_bytes(t) == 2) {
            ((uint16_t *)src)[i] = (uint16_t)i;
            continue;
        }
        if (kind == 1) /* near a midpoint of f16 or bf16 */
            x = rounded(x, i & 1 ? DTYPE_F16 : DTYPE_BF16) * (1 + ldexp(1, i & 1 ? -11 : -8)) +
                ldexp((double)rng_int(r, -1, 1), -60);
        if (kind == 2)
            x = ldexp(rng_real(r), (int)rng_int(r, -1060, 130));
        if (t == DTYPE_F64)
            memcpy((double *)src + i, kind ? (void *)&x : (void *)&bits, 8);
        else
            ((float *)src)[i] = kind ? (float)x : vec_float((uint32_t)bits);
    }
    return n;
}

static void all_pairs(const char *name)
{
    struct rng r = rng_start(name);
    const enum dtype types[] = { DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_F64 };
    int64_t n = 65536;
    void *src = malloc((size_t)n * 8), *dst = malloc((size_t)n * 8);

    cr_assert(src && dst);
    for (int a = 0; a < 4; a++)
        for (int b = 0; b < 4; b++) {
            fill(&r, src, types[a], n);
            check(dst, types[b], src, types[a], n);
            for (int64_t odd = 0; odd < 40; odd++)
                check(dst, types[b], (char *)src + 8 * odd, types[a], odd);
        }
    free(src);
    free(dst);
}

Test(cast, every_pair_rounds_once_to_nearest_even)
{
    all_pairs("cast");
}

Test(cast, threads_do_not_change_the_result)
{
    use_threads(3);
    all_pairs("cast, three threads");
}

Test(cast, no_element_past_the_end_is_written)
{
    const float x[40] = { 1, 2, 3 };
    uint16_t y[41];

    for (int64_t n = 0; n <= 40; n++) {
        memset(y, 0xab, sizeof y);
        cast(y, DTYPE_BF16, x, DTYPE_F32, n);
        for (int64_t i = n; i < 41; i++)
            cr_assert_eq(y[i], 0xabab);
    }
}

/* GPUs have these conversions only in vec.h. -NaN, signaling NaNs, and every number. */
Test(cast, f64_to_f32_and_back_keep_of_a_nan_what_the_processor_keeps)
{
    struct rng r = rng_start("cast/nan");

    for (int i = 0; i < 100000; i++) {
        uint64_t wide = rng_next(&r), got_wide, want_wide;
        uint32_t narrow = (uint32_t)rng_next(&r);
        volatile double x;
        volatile float y;
        double back;

        if (i % 2) {
            wide |= UINT64_C(0x7ff0000000000000);
            narrow |= 0x7f800000;
        }
        memcpy((void *)(uintptr_t)&x, &wide, sizeof wide);
        memcpy((void *)(uintptr_t)&y, &narrow, sizeof narrow);
        cr_assert_eq(vec_bits(vec_from_f64(x)), vec_bits((float)x), "%llx",
                     (unsigned long long)wide);
        back = (double)y;
        memcpy(&want_wide, &back, sizeof back);
        back = vec_to_f64(y);
        memcpy(&got_wide, &back, sizeof back);
        cr_assert_eq(got_wide, want_wide, "%x", narrow);
    }
}

Test(cast, exponential_is_within_1_01_units_in_the_last_place)
{
    double worst = 0;

    for (uint32_t u = 0; u < 0xffffff00u; u += 251) {
        float x = vec_float(u), got = vec_exp(x);
        double want = exp((double)x);
        int exponent;

        if (isnan(x)) {
            cr_assert(isnan(got));
        } else if (want > 3.402823e38) {
            cr_assert(got > 3.4e38f, "exp(%a) is %a", (double)x, (double)got);
        } else {
            frexp(want, &exponent);
            exponent = exponent < -125 ? -125 : exponent;
            worst = fmax(worst, fabs((double)got - want) / ldexp(1, exponent - 24));
        }
    }
    cr_assert(worst <= 1.01, "%g units", worst);
    cr_assert(vec_exp(0) == 1.0f && vec_exp(-INFINITY) == 0.0f && isinf(vec_exp(INFINITY)));
}
