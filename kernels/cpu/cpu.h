/*
 * kernels/cpu/cpu.h - the operations of kernels/ops.h for the CPU device (device/cpu/cpu.h): vector
 * loops in C, products by oneDNN or AVX-512 BF16, and as many OpenMP threads as the device says.
 * Results are the same in every run. They do not depend on the number of threads, except for
 * products by oneDNN (it may split sums over threads) and sums whose header says so.
 */
#ifndef KERNELS_CPU_CPU_H
#define KERNELS_CPU_CPU_H

#include "kernels/ops.h"

extern const struct kernel_ops kernels_cpu;

/* Which kernels multiply on this processor: lines of text, each ended by a newline. */
const char *kernels_cpu_description(void);

#endif
