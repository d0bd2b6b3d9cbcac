/*
 * tests/fakecuda/gpus.h - which GPUs of the machine a process sees, and the one that fails.
 *
 * FAKECUDA_GPUS is the number of GPUs of the machine. If it is set, CUDA_VISIBLE_DEVICES selects
 * some of them by their numbers, as with NVIDIA's driver: the first number that no GPU has ends the
 * list. FAKECUDA_CAPABILITY is their compute capability, 90 (9.0) if it is not set. FAKECUDA_USED
 * names a file with a line "process number" for each GPU that a process uses. FAKECUDA_NO_USE is a
 * CUDA error: the machine has GPUs, and the driver cannot use them. FAKECUDA_BUSY is one, too: the
 * process cannot open the GPU that it selects. FAKECUDA_FAIL is "number error
 * n": that GPU fails with this CUDA error after n operations. FAKECUDA_FAIL_NCCL is "number n": on
 * that GPU, NCCL accepts n calls and then none. FAKECUDA_FAIL_IN_NCCL is "number n": that GPU fails
 * after n calls of NCCL, and the next one is the first that notices it. FAKECUDA_LOSE_NCCL is
 * "number n": that GPU loses the network after n of NCCL's operations have begun.
 * FAKECUDA_HANG_ABORT is the number of a GPU on which an abort of NCCL never ends.
 * FAKECUDA_OPENS_AFTER names a file: a process that opens a GPU waits until the file is there.
 */
#ifndef TESTS_FAKECUDA_GPUS_H
#define TESTS_FAKECUDA_GPUS_H

#include <cuda_runtime_api.h>

namespace fake
{

void gpus_begin();        /* from the environment */
void gpus_set(int count); /* all of a machine with `count` */
int gpus_count();         /* that the process sees */
int gpus_capability();    /* their compute capability: 90 is 9.0 */
void gpus_be(int capability);
int gpus_number(int ordinal); /* the machine's number of one of them */
cudaError_t gpus_busy();      /* why none can be opened, or cudaSuccess */
void gpus_use(int ordinal);   /* from now on, the process's operations run on it */
int gpus_used();          /* the machine's number of that one; the first one, if none was named */
bool gpus_accept_nccl();  /* a call of NCCL */
void gpus_fail_in_nccl(); /* if one is to fail now */
bool gpus_have_network(); /* for the next of NCCL's operations */
bool gpus_end_aborts();

} // namespace fake

#endif
