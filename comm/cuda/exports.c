/* comm/cuda/exports.c - what libtp-cuda.so exports: comm/cuda/library.h. */
#include "comm/cuda/library.h"
#include "comm/cuda/nccl_transport.h"
#include "device/cuda/cuda.h"
#include "device/cuda/cuda_gpu.h"
#include "kernels/cuda/cuda.h"

extern const struct cuda_library tp_cuda_library;
__attribute__((visibility("default"))) const struct cuda_library tp_cuda_library = {
    .version = TP_VERSION,
    .count = cuda_gpu_count,
    .name = cuda_gpu_name,
    .memory = cuda_gpu_memory,
    .device_open = cuda_device_open,
    .kernels = &kernels_cuda,
    .transport = &comm_nccl_transport,
};
