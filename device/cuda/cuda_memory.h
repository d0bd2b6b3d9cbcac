/*
 * device/cuda/cuda_memory.h - memory of a GPU, and pinned host memory. Inside device/cuda/.
 */
#ifndef DEVICE_CUDA_CUDA_MEMORY_H
#define DEVICE_CUDA_CUDA_MEMORY_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"

struct CUstream_st;
struct cuda_buffer;

/* What was allocated. The GPU is the calling thread's current one in all calls. Any thread may
 * allocate and free. */
struct cuda_memory {
    int ordinal;                /* of the GPU, for messages */
    struct CUstream_st *stream; /* for setting new memory to zero */
    pthread_mutex_t lock;       /* for the list */
    struct cuda_buffer *buffers;
};

tp_status cuda_memory_open(struct cuda_memory *m, int ordinal, struct tp_err *err);

/* Free all buffers. works: the GPU has not failed. After a failure what is queued may never end,
 * and freeing would wait for it, so the memory ends with the process. */
void cuda_memory_close(struct cuda_memory *m, bool works);

/* Zeroed memory. TP_E_GPU_FULL, TP_E_NOMEM: there is not enough of the GPU, of the host. */
tp_status cuda_memory_alloc(struct cuda_memory *m, void **out, int64_t n_bytes, bool is_pinned,
                            struct tp_err *err);
void cuda_memory_free(struct cuda_memory *m, void *p, bool works); /* as cuda_memory_close */

/* Device memory with any content, for work on a stream. It is taken in the order of the stream, so
 * nothing waits for other streams; not during a capture. The caller frees it with cudaFree.
 * TP_E_GPU_FULL. */
tp_status cuda_memory_take_queued(const struct cuda_memory *m, void **out, int64_t n_bytes,
                                  struct CUstream_st *stream, struct tp_err *err);

#endif
