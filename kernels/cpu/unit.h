/*
 * kernels/cpu/unit.h - the processor's units for bf16 products, and which kernels use them.
 */
#ifndef KERNELS_CPU_UNIT_H
#define KERNELS_CPU_UNIT_H

#include <stdbool.h>

#include "device/device.h"

enum unit {
    UNIT_AVX512_BF16 = 1, /* VDPBF16PS, beside AVX-512 F, BW, DQ and VL */
    UNIT_AMX_BF16 = 2,    /* TDPBF16PS; used beside UNIT_AVX512_BF16 alone */
};

/* Whether this processor and its system have the unit, and q's device may use it. */
bool unit_usable(const struct device_queue *q, enum unit unit);

/* Which kernels multiply matrices on this processor: lines of text, each ended by a newline. */
const char *unit_description(void);

#endif
