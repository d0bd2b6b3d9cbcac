/*
 * kernels/cpu/gemm_onednn.h - single matrix products by oneDNN. Inside kernels/cpu/.
 */
#ifndef KERNELS_CPU_GEMM_ONEDNN_H
#define KERNELS_CPU_GEMM_ONEDNN_H

#include "device/device.h"
#include "kernels/gemm.h"

/* One product, by the threads of q's device; m, n, k and alpha are not zero.
 * TP_E_INTERNAL: the library refused (its status is named); TP_E_NOMEM. */
tp_status gemm_onednn(const struct device_queue *q, const struct gemm *g, struct tp_err *err);

#endif
