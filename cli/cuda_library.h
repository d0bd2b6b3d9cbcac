/*
 * cli/cuda_library.h - where the programs find libtp-cuda.so (comm/cuda/library.h): the file that
 * TP_CUDA_LIBRARY names, or libtp-cuda.so beside the program, in ../lib or ../lib/tp from there, or
 * where the system's loader looks.
 */
#ifndef CLI_CUDA_LIBRARY_H
#define CLI_CUDA_LIBRARY_H

#include <stdbool.h>

#include "comm/cuda/library.h"

/* Load the library. TP_E_NOTFOUND: there is none that can be used; the message says why. */
tp_status cuda_library_find(const struct cuda_library **out, struct tp_err *err);

/* Whether it is worth a thread to find it: a file is named, or there is a driver. */
bool cuda_library_is_likely(void);

/* Prepare this process for kernels that wait for those of other ranks. CUDA then loads all kernels
 * when it begins, instead of each at its first launch, which may wait for kernels that run; and its
 * streams (up to 32) share no queue of the hardware, in which one would wait behind another. Both
 * are variables of the environment, and those that are set stay. Called before cuda_library_find,
 * while the process has one thread. */
void cuda_library_for_ranks(void);

/* Whether NCCL is told to accept ranks that share a GPU, as tests on one card do: by its variable
 * NCCL_HOSTID or NCCL_MULTI_RANK_GPU_ENABLE. */
bool cuda_library_shares_gpus(void);

/* NCCL accepts ranks on one GPU if they are of different hosts. So where ranks share GPUs, and
 * NCCL_HOSTID names the host of all of them, add the rank's number to it. Called in the rank,
 * before NCCL is used. */
void cuda_library_name_host(int rank);

#endif
