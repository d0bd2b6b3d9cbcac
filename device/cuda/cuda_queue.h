/*
 * device/cuda/cuda_queue.h - the queues of the CUDA device: a stream each, with scratch memory.
 */
#ifndef DEVICE_CUDA_CUDA_QUEUE_H
#define DEVICE_CUDA_CUDA_QUEUE_H

#ifdef __cplusplus
extern "C" {
#endif

#include "device/device.h"

/* As CUDA declares it, so that callers compile without CUDA's headers. */
struct CUstream_st;

/* ---- for kernels and collectives ---- */

/* Prepare the calling thread to launch a kernel on a queue. False: the device has failed, and
 * nothing is to be queued. */
bool cuda_queue_begin(struct device_queue *q);

struct CUstream_st *cuda_queue_stream(const struct device_queue *q);

/* Open a stream as that of a queue of this kind, on the calling thread's GPU. Communication goes
 * first, because other ranks wait for it. Returns CUDA's error, 0 for none. */
int cuda_queue_open_stream(struct CUstream_st **out, enum device_queue_kind kind);

/* The GPU's number of processors (CUDA: multiprocessors). */
int cuda_queue_processors(const struct device_queue *q);
/* Its compute capability: 90 is 9.0. */
int cuda_queue_capability(const struct device_queue *q);

/* What kernels keep for a queue, such as a handle of a library. `close`, if it is set, is called
 * when the queue is closed and nothing of it runs any more; has_failed: or when the device has
 * failed, after which it frees host memory and calls no library (cuda_queue_close). */
struct cuda_attachment {
    void *p;
    void (*close)(void *p, bool has_failed);
};
struct cuda_attachment *cuda_queue_attachment(struct device_queue *q);

/* Keep a failure: what was queued, and CUDA's error, 0 for none. */
void cuda_queue_check(struct device_queue *q, const char *what, int error);

/* As cuda_device_probe: whether the GPU is why a library has failed in `what`. */
bool cuda_queue_probe(struct device_queue *q, const char *what);

/* ---- for the device: as struct device_ops documents them ---- */

tp_status cuda_queue_open(struct device *d, struct device_queue **out, enum device_queue_kind kind,
                          struct tp_err *err);
void cuda_queue_close(struct device_queue *queue);
void cuda_queue_submit(struct device_queue *q, const struct device_operation *o);
void *cuda_queue_scratch(struct device_queue *queue, int64_t n_bytes);
void cuda_queue_copy(struct device_queue *q, const struct device_copy *copy);
void cuda_queue_fill(struct device_queue *q, void *dst, int byte, int64_t n_bytes);

#ifdef __cplusplus
}
#endif

#endif
