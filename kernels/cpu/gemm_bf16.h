/*
 * kernels/cpu/gemm_bf16.h - single products of bf16 matrices by AVX-512 BF16 or AMX, packed in
 * blocks that stay in the caches (Goto and van de Geijn 2008). Inside kernels/cpu/.
 */
#ifndef KERNELS_CPU_GEMM_BF16_H
#define KERNELS_CPU_GEMM_BF16_H

#include "device/device.h"
#include "kernels/gemm.h"

/* One product, by the threads of q's device; m, n, k and alpha are not zero. The processor has
 * UNIT_AVX512_BF16; UNIT_AMX_BF16 is used where it is there. An element's bits depend on its row of
 * op(A), its column of op(B) and k alone, not on m, n or the number of threads. TP_E_NOMEM. */
tp_status gemm_bf16(const struct device_queue *q, const struct gemm *g, struct tp_err *err);

#endif
