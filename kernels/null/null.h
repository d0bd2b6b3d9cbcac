/*
 * kernels/null/null.h - operations that do nothing, on a queue of any device: for the device of
 * device/null/null.h.
 */
#ifndef KERNELS_NULL_NULL_H
#define KERNELS_NULL_NULL_H

#include "kernels/ops.h"

extern const struct kernel_ops kernels_null;

#endif
