/*
 * kernels/cpu/avx512.h - how a file compiles functions for AVX-512 BF16, whatever the processor of
 * the build. Only a caller that asked unit_usable may call them. Inside kernels/cpu/.
 */
#ifndef KERNELS_CPU_AVX512_H
#define KERNELS_CPU_AVX512_H

#define AVX512_BF16 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))

/* Before a short loop that the compiler unrolls whole, so that arrays become registers. */
#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#endif
