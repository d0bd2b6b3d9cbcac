/*
 * device/cuda/cuda_copy.h - the copies of a queue. Inside device/cuda/.
 */
#ifndef DEVICE_CUDA_CUDA_COPY_H
#define DEVICE_CUDA_CUDA_COPY_H

#include "device/device.h"

struct CUstream_st;

/* Queue a copy. pitch_max: the largest distance between rows that CUDA accepts; wider rows are
 * copied one by one. Returns CUDA's error, 0 for none. */
int cuda_copy(struct CUstream_st *s, const struct device_copy *c, int64_t pitch_max);

#endif
