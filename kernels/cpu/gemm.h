/*
 * kernels/cpu/gemm.h - single matrix products, for kernels that are made of them and for tests.
 */
#ifndef KERNELS_CPU_GEMM_H
#define KERNELS_CPU_GEMM_H

#include "device/device.h"
#include "kernels/gemm.h"

/* One product at once, without g->batch, by the threads of the device; by the calling thread alone
 * inside of a parallel loop. TP_E_INTERNAL: the library refused (its status is named). */
tp_status gemm_one(const struct device_queue *q, const struct gemm *g, struct tp_err *err);

/* The same as a plain loop in double. */
void gemm_reference(const struct gemm *g);

#endif
