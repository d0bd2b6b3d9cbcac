/*
 * cli/train/train_cuda.h - a rank's GPU, from the library libtp-cuda.so (cli/cuda_library.h).
 */
#ifndef CLI_TRAIN_TRAIN_CUDA_H
#define CLI_TRAIN_TRAIN_CUDA_H

#include <stdbool.h>

#include "comm/world.h"
#include "core/heartbeat.h"
#include "trainer/trainer.h"

enum { TRAIN_CUDA_HOST_MAX = 120, TRAIN_CUDA_NAME_MAX = 32 };

/* A rank's GPU. */
struct train_cuda_gpu {
    char host[TRAIN_CUDA_HOST_MAX]; /* its name, and something that no other host has */
    char name[TRAIN_CUDA_NAME_MAX]; /* no other GPU of the host has it */
};

/* Open this rank's GPU: rank i of a host has GPU i. same_gpus: all ranks of a host see the same
 * GPUs. TP_E_NOTFOUND: there is no library, no driver or no GPU; TP_E_USAGE: fewer GPUs than ranks.
 * `heartbeat` is told how many ranks of the host have none. On failure out->device is NULL. */
tp_status train_cuda_open(struct trainer_device *out, struct train_cuda_gpu *gpu,
                          const struct comm_world *ranks, bool same_gpus,
                          struct heartbeat *heartbeat, struct tp_err *err);

/* Whether each rank has a GPU of its own. Collective, after every rank has opened one. TP_E_USAGE:
 * ranks share a GPU, which NCCL refuses; `heartbeat` is told how many of the host's ranks do. */
tp_status train_cuda_check(const struct train_cuda_gpu *gpu, struct comm_world *ranks,
                           struct heartbeat *heartbeat, struct tp_err *err);

#endif
