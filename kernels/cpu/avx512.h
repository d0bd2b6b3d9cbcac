/*
 * kernels/cpu/avx512.h - how a file compiles functions for AVX-512 BF16 and AMX, whatever the
 * x86-64 processor of the build. Only a caller that asked unit_usable may call them. Other
 * processors' builds have no such functions. Inside kernels/cpu/.
 */
#ifndef KERNELS_CPU_AVX512_H
#define KERNELS_CPU_AVX512_H

#define AVX512_BF16_NAMES "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16"
#define AVX512_BF16       __attribute__((target(AVX512_BF16_NAMES)))
#define AMX_BF16          __attribute__((target("amx-tile,amx-bf16," AVX512_BF16_NAMES)))

/* Before a short loop that the compiler unrolls whole, so that arrays become registers. */
#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#endif
