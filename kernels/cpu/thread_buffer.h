/*
 * kernels/cpu/thread_buffer.h - scratch memory of the calling thread, for kernels that run inside
 * of a shared loop and whose threads OpenMP starts and ends.
 */
#ifndef KERNELS_CPU_THREAD_BUFFER_H
#define KERNELS_CPU_THREAD_BUFFER_H

#include <stdint.h>

/* At least n bytes, aligned to 64, with undefined contents. The memory is the thread's until it
 * ends, and is replaced where a later call needs more. NULL: out of memory. */
void *thread_buffer(int64_t n_bytes);

#endif
