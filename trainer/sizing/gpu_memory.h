/*
 * trainer/sizing/gpu_memory.h - the bytes of a GPU, and of its host, that a rank of tp-train needs.
 *
 * The buffers of the trainer are counted exactly: by the code that takes them, for a device that
 * keeps_bf16 (kernels/ops.h). What kernels, CUDA and NCCL take is an estimate. **It was never
 * compared with a GPU**; gpu_memory.c says where each number comes from.
 */
#ifndef TRAINER_SIZING_GPU_MEMORY_H
#define TRAINER_SIZING_GPU_MEMORY_H

#include "trainer/sizing/memory.h"

struct gpu_memory {
    int64_t tensors;     /* the trainer's buffers, exactly */
    int64_t scratch;     /* of kernels and cuBLAS; before the first step of reading a checkpoint */
    int64_t cuda;        /* its context, and the code of kernels */
    int64_t collectives; /* buffers of NCCL */
    int64_t total;       /* of the GPU: the sum of all above */
    int64_t host;        /* memory of the host beside it: pinned buffers, the copy that is saved */
};

/* What the largest rank needs. w->keeps_bf16 has no effect; the rest as memory_estimate. A rank's
 * parts are those of the largest in each; total and host are MEMORY_MOST when the bytes cannot be
 * counted in 64 bits. */
struct gpu_memory gpu_memory_estimate(struct memory_model *mm, const struct spec *s,
                                      const struct workload *w);

#endif
