/*
 * tests/fakecuda/ptx/instructions.h - the instructions of PTX that translate.py knows, by NVIDIA's
 * PTX ISA. A register is an unsigned integer of its width (a predicate: bool), because an
 * instruction and not a register has a type; as<T> and set convert.
 *
 * Where the ISA leaves a choice, a result is one that no correct kernel depends on: a NaN of f32 is
 * the canonical one, a register that nothing has written is all ones.
 */
#ifndef TESTS_FAKECUDA_PTX_INSTRUCTIONS_H
#define TESTS_FAKECUDA_PTX_INSTRUCTIONS_H

#include <cuda_runtime.h>

#include "tests/fakecuda/ptx_kernels.h"

namespace ptx
{

using b8 = uint8_t;
using b16 = uint16_t;
using b32 = uint32_t;
using b64 = uint64_t;
using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using s8 = int8_t;
using s16 = int16_t;
using s32 = int32_t;
using s64 = int64_t;
using f32 = float;
using f64 = double;
using pred = bool;

#define PTX_INLINE inline __attribute__((always_inline))

template <typename To, typename From> PTX_INLINE To bits(From x)
{
    static_assert(sizeof(To) == sizeof(From), "two types of one size");
    To y;
    __builtin_memcpy(&y, &x, sizeof y);
    return y;
}

/* ---- registers and operands ---- */

template <int> struct unsigned_of;
template <> struct unsigned_of<1> {
    using type = u8;
};
template <> struct unsigned_of<2> {
    using type = u16;
};
template <> struct unsigned_of<4> {
    using type = u32;
};
template <> struct unsigned_of<8> {
    using type = u64;
};

/* The lower bits of a register as an operand of type T. */
template <typename T, typename R> PTX_INLINE T as(R r)
{
    if constexpr (std::is_same<T, pred>::value)
        return r;
    else
        return bits<T>((typename unsigned_of<sizeof(T)>::type)r);
}

/* A result goes to a register that may be wider: signed ones extend their sign. */
template <typename R, typename T> PTX_INLINE void set(R &r, T x)
{
    static_assert(sizeof(T) <= sizeof(R), "a register is as wide as what it receives");
    if constexpr (std::is_floating_point<T>::value)
        r = bits<typename unsigned_of<sizeof(T)>::type>(x);
    else
        r = (R)x;
}

/* The parts of a register, the lowest first, and back. */
template <typename T, typename R> PTX_INLINE T part(R r, int i)
{
    return (T)(r >> (8 * sizeof(T) * (unsigned)i));
}

template <typename T> PTX_INLINE u64 joined(T a, T b)
{
    return (u64)a | (u64)b << 8 * sizeof(T);
}

/* ---- integers ---- */

template <typename T> PTX_INLINE T add(T a, T b)
{
    return (T)(a + b);
}

template <typename T> PTX_INLINE T sub(T a, T b)
{
    return (T)(a - b);
}

template <typename T> PTX_INLINE T mul_lo(T a, T b)
{
    return (T)(a * b);
}

PTX_INLINE u32 mul_hi(u32 a, u32 b)
{
    return (u32)((u64)a * b >> 32);
}

PTX_INLINE u64 mul_hi(u64 a, u64 b)
{
    return (u64)((unsigned __int128)a * b >> 64);
}

PTX_INLINE s32 mul_wide(s16 a, s16 b)
{
    return (s32)a * b;
}

PTX_INLINE u32 mul_wide(u16 a, u16 b)
{
    return (u32)a * b;
}

PTX_INLINE s64 mul_wide(s32 a, s32 b)
{
    return (s64)a * b;
}

PTX_INLINE u64 mul_wide(u32 a, u32 b)
{
    return (u64)a * b;
}

template <typename T> PTX_INLINE T mad_lo(T a, T b, T c)
{
    return (T)(a * b + c);
}

/* a + b + in; *out: whether it carries. NULL: the instruction does not say (it has no .cc). */
PTX_INLINE u32 add_carry(u32 a, u32 b, bool in, bool *out)
{
    u64 sum = (u64)a + b + in;

    if (out)
        *out = sum >> 32;
    return (u32)sum;
}

PTX_INLINE u32 sub_borrow(u32 a, u32 b, bool in, bool *out)
{
    u64 difference = (u64)a - b - in;

    if (out)
        *out = difference >> 63;
    return (u32)difference;
}

/* Division by zero has any result: on GPUs all ones. */
template <typename T> PTX_INLINE T div(T a, T b)
{
    if (b == 0)
        return (T) ~(T)0;
    return std::is_signed<T>::value && b == (T)-1 ? (T)(0 - (u64)a) : (T)(a / b);
}

template <typename T> PTX_INLINE T rem(T a, T b)
{
    if (b == 0)
        return a;
    return std::is_signed<T>::value && b == (T)-1 ? 0 : (T)(a % b);
}

template <typename T> PTX_INLINE T neg(T a)
{
    return (T)(0 - a);
}

template <typename T> PTX_INLINE T bit_and(T a, T b)
{
    return (T)(a & b);
}

template <typename T> PTX_INLINE T bit_or(T a, T b)
{
    return (T)(a | b);
}

template <typename T> PTX_INLINE T bit_xor(T a, T b)
{
    return (T)(a ^ b);
}

template <typename T> PTX_INLINE T bit_not(T a)
{
    return (T)~a;
}

PTX_INLINE bool bit_not(bool a)
{
    return !a;
}

/* A shift by more than the width is one by the width. */
template <typename T> PTX_INLINE T shl(T a, u32 n)
{
    return n < 8 * sizeof(T) ? (T)(a << n) : 0;
}

template <typename T> PTX_INLINE T shr(T a, u32 n)
{
    enum : u32 { WIDTH = 8 * sizeof(T) };

    if (std::is_signed<T>::value)
        return (T)(a >> (n < WIDTH ? n : WIDTH - 1));
    return n < WIDTH ? (T)(a >> n) : 0;
}

/* shf.l.wrap: the upper word of {b, a} shifted left. */
PTX_INLINE u32 shf_l_wrap(u32 a, u32 b, u32 n)
{
    return (u32)((((u64)b << 32 | a) << (n & 31)) >> 32);
}

PTX_INLINE u32 bfi(u32 field, u32 into, u32 position, u32 length)
{
    u32 at = position & 0xff, n = length & 0xff;
    u32 mask = shl((u32)(shl((u64)1, n < 32 ? n : 32) - 1), at);

    return (into & ~mask) | (shl(field, at) & mask);
}

/* Four bytes of {b, a}, each chosen by 3 bits; with the fourth bit the byte's sign fills it. */
PTX_INLINE u32 prmt(u32 a, u32 b, u32 choice)
{
    u64 both = (u64)b << 32 | a;
    u32 d = 0;

    for (int i = 0; i < 4; i++) {
        u32 c = choice >> 4 * i & 0xf, byte = (u32)(both >> 8 * (c & 7)) & 0xff;

        if (c & 8)
            byte = byte & 0x80 ? 0xff : 0;
        d |= byte << 8 * i;
    }
    return d;
}

PTX_INLINE u32 popc(u32 a)
{
    return (u32)__builtin_popcount(a);
}

PTX_INLINE u32 clz(u64 a)
{
    return a ? (u32)__builtin_clzll(a) : 64;
}

/* ---- numbers ---- */

PTX_INLINE f32 canonical(f32 x)
{
    return x == x ? x : bits<f32>((u32)0x7fffffff);
}

PTX_INLINE f64 canonical(f64 x) /* f64 keeps the payload of a NaN */
{
    return x;
}

PTX_INLINE f32 flushed(f32 x)
{
    return __builtin_fabsf(x) < 0x1p-126f ? __builtin_copysignf(0, x) : x;
}

#define PTX_NUMBERS(T)                                        \
    PTX_INLINE T add(T a, T b)                                \
    {                                                         \
        return canonical(a + b);                              \
    }                                                         \
    PTX_INLINE T sub(T a, T b)                                \
    {                                                         \
        return canonical(a - b);                              \
    }                                                         \
    PTX_INLINE T mul(T a, T b)                                \
    {                                                         \
        return canonical(a * b);                              \
    }                                                         \
    PTX_INLINE T div(T a, T b)                                \
    {                                                         \
        return canonical(a / b);                              \
    }                                                         \
    PTX_INLINE T rcp(T a)                                     \
    {                                                         \
        return canonical(1 / a);                              \
    }                                                         \
    PTX_INLINE T sqrt(T a)                                    \
    {                                                         \
        return canonical(std::sqrt(a));                       \
    }                                                         \
    PTX_INLINE T fma(T a, T b, T c)                           \
    {                                                         \
        return canonical(std::fma(a, b, c));                  \
    }                                                         \
    PTX_INLINE T abs(T a)                                     \
    {                                                         \
        return std::fabs(a);                                  \
    }                                                         \
    PTX_INLINE T neg(T a)                                     \
    {                                                         \
        return -a;                                            \
    }                                                         \
    /* Of a NaN and a number the number; -0 < +0. */          \
    PTX_INLINE T min(T a, T b)                                \
    {                                                         \
        if (a != a || b != b)                                 \
            return canonical(a != a ? b : a);                 \
        return a < b || (a == b && std::signbit(a)) ? a : b;  \
    }                                                         \
    PTX_INLINE T max(T a, T b)                                \
    {                                                         \
        if (a != a || b != b)                                 \
            return canonical(a != a ? b : a);                 \
        return a > b || (a == b && !std::signbit(a)) ? a : b; \
    }
PTX_NUMBERS(f32)
PTX_NUMBERS(f64)

template <typename T> PTX_INLINE T min(T a, T b)
{
    return a < b ? a : b;
}

template <typename T> PTX_INLINE T max(T a, T b)
{
    return a > b ? a : b;
}

/* sum + error is the exact a + b (Knuth). */
PTX_INLINE void exact_sum(f64 a, f64 b, f64 *sum, f64 *error)
{
    f64 s = a + b, of_b = s - a;

    *sum = s;
    *error = (a - (s - of_b)) + (b - of_b);
}

/* The largest f32 that is not above s + e, with s the nearest f64 of s + e. */
PTX_INLINE f32 rounded_down(f64 s, f64 e)
{
    f32 x = (f32)s;

    if (!std::isfinite(s))
        return canonical(x);
    return x > s || (x == s && e < 0) ? std::nextafter(x, -INFINITY) : x;
}

PTX_INLINE f32 fma_rm(f32 a, f32 b, f32 c)
{
    f64 product = (f64)a * b, s, e;

    exact_sum(product, c, &s, &e);
    if (s == 0 && e == 0 && std::signbit(product) != std::signbit(c))
        return -0.0f;
    return rounded_down(s, e);
}

PTX_INLINE f32 add_rz(f32 a, f32 b)
{
    f64 s, e;

    exact_sum(a, b, &s, &e);
    return s < 0 ? -rounded_down(-s, -e) : rounded_down(s, e);
}

/* The approximations are as good as they can be here; a GPU's differ in the last bits. */
PTX_INLINE f32 ex2_approx_ftz(f32 a)
{
    return canonical(flushed((f32)std::exp2((f64)flushed(a))));
}

/* Of the upper word, to the upper word. */
PTX_INLINE f64 rcp_approx_ftz(f64 a)
{
    enum : u64 { UPPER = 0xffffffff00000000 };
    f64 x = bits<f64>(bits<u64>(a) & UPPER);

    if (std::fabs(x) < 0x1p-1022)
        x = std::copysign(0.0, x);
    x = 1 / x;
    if (std::fabs(x) < 0x1p-1022)
        x = std::copysign(0.0, x);
    return bits<f64>(bits<u64>(x) & UPPER);
}

/* ---- conversions ---- */

PTX_INLINE f32 to_f32(f64 x)
{
    return canonical((f32)x);
}

PTX_INLINE f32 saturated(f32 x) /* a NaN becomes 0 */
{
    return x > 0 ? (x < 1 ? x : 1) : 0;
}

PTX_INLINE s32 to_s32_rni(f64 x)
{
    f64 y = std::nearbyint(x);

    if (x != x)
        return INT32_MIN;
    return y <= INT32_MIN ? INT32_MIN : y >= INT32_MAX ? INT32_MAX : (s32)y;
}

PTX_INLINE u32 to_bf16(f32 x)
{
    u32 b = bits<u32>(x);

    return x == x ? (b + 0x7fff + (b >> 16 & 1)) >> 16 : 0x7fff;
}

PTX_INLINE u32 to_bf16x2(f32 upper, f32 lower)
{
    return to_bf16(upper) << 16 | to_bf16(lower);
}

/* ---- predicates ---- */

template <typename T> PTX_INLINE T selp(T a, T b, bool p)
{
    return p ? a : b;
}

#define PTX_COMPARE(name, holds)                                \
    template <typename T> PTX_INLINE bool setp_##name(T a, T b) \
    {                                                           \
        return holds;                                           \
    }
PTX_COMPARE(eq, a == b)
PTX_COMPARE(ne, a<b || a> b)
PTX_COMPARE(lt, a < b)
PTX_COMPARE(le, a <= b)
PTX_COMPARE(gt, a > b)
PTX_COMPARE(ge, a >= b)
PTX_COMPARE(equ, !(a < b || a > b))
PTX_COMPARE(neu, !(a == b))
PTX_COMPARE(ltu, !(a >= b))
PTX_COMPARE(leu, !(a > b))
PTX_COMPARE(gtu, !(a <= b))
PTX_COMPARE(geu, !(a < b))
PTX_COMPARE(num, a == a && b == b)
PTX_COMPARE(nan, a != a || b != b)

/* ---- memory ---- */

template <typename T, int N> struct vec {
    T x[N];
};

template <space S> PTX_INLINE char *at(u64 address)
{
    return S == SHARED ? ptx_shared((u32)address) : (char *)address;
}

template <space S, typename T, int N> PTX_INLINE vec<T, N> load(u64 address)
{
    vec<T, N> v;

    if (S != OWN)
        ptx_access(at<S>(address), sizeof v, S, false);
    __builtin_memcpy(&v, at<S>(address), sizeof v);
    return v;
}

template <space S, typename T, int N> PTX_INLINE void store(u64 address, vec<T, N> v)
{
    if (S != OWN)
        ptx_access(at<S>(address), sizeof v, S, true);
    __builtin_memcpy(at<S>(address), &v, sizeof v);
}

#define PTX_ATOMIC(name)                                             \
    template <typename T> PTX_INLINE T atom_##name(u64 address, T x) \
    {                                                                \
        T old;                                                       \
        ptx_atomic((void *)address, sizeof old);                     \
        __builtin_memcpy(&old, (void *)address, sizeof old);         \
        T y = name(old, x);                                          \
        __builtin_memcpy((void *)address, &y, sizeof y);             \
        return old;                                                  \
    }
PTX_ATOMIC(add)
PTX_ATOMIC(bit_xor)

/* ---- the warp ---- */

/* c: the clamp in bits 0 .. 4, and the mask of the lane's segment in bits 8 .. 12. *from_other:
 * whether the source is within the segment. */
enum shuffle { UP, BFLY, IDX };

template <shuffle mode> PTX_INLINE u32 shfl(u32 a, u32 b, u32 c, u32 members, bool *from_other)
{
    int lane = fakecuda_lane(), by = (int)(b & 31), clamp = (int)(c & 31),
        mask = (int)(c >> 8 & 31);
    int last = (lane & mask) | (clamp & ~mask);
    int from = mode == UP ? lane - by : mode == BFLY ? lane ^ by : (lane & mask) | (by & ~mask);
    bool within = mode == UP ? from >= last : from <= last;
    fakecuda_shuffle s = { a, 0, within ? from : lane };

    if (from_other)
        *from_other = within;
    fakecuda_warp_shuffle(members, &s,
                          mode == UP     ? "shfl.up"
                          : mode == BFLY ? "shfl.bfly"
                                         : "shfl.idx");
    return (u32)s.out;
}

PTX_INLINE void mma(f32 *d, const u32 *a, const u32 *b, const f32 *c)
{
    for (int i = 0; i < 4; i++)
        d[i] = c[i];
    fakecuda_mma_m16n8k16(d, a, b);
    for (int i = 0; i < 4; i++)
        d[i] = canonical(d[i]);
}

} // namespace ptx

#endif
