/*
 * cli/train/train_cuda.h - a rank's GPU, from the library libtp-cuda.so (cli/cuda_library.h).
 */
#ifndef CLI_TRAIN_TRAIN_CUDA_H
#define CLI_TRAIN_TRAIN_CUDA_H

#include <stdbool.h>

#include "comm/world.h"
#include "trainer/trainer.h"

/* Open this rank's GPU: rank i of a host has GPU i. same_gpus: all ranks of a host see the same
 * GPUs. TP_E_NOTFOUND: there is no library, no driver or no GPU; TP_E_USAGE: fewer GPUs than ranks.
 * On failure out->device is NULL. */
tp_status train_cuda_open(struct trainer_device *out, const struct comm_world *ranks,
                          bool same_gpus, struct tp_err *err);

#endif
