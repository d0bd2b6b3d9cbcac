/*
 * device/cuda/cuda.h - the CUDA device: an NVIDIA GPU. Queues are streams, events are events.
 *
 * It is compiled into the library that comm/cuda/library.h loads, and into no program. It cannot
 * run host functions (device_submit) and has no use for memory of others (device_adopt).
 */
#ifndef DEVICE_CUDA_CUDA_H
#define DEVICE_CUDA_CUDA_H

#ifdef __cplusplus
extern "C" {
#endif

#include "device/device.h"

/* As CUDA declares it, so that callers compile without CUDA's headers. */
struct CUstream_st;

/* How many GPUs this process sees, at least 1. TP_E_NOTFOUND: none that can be used; the message
 * says why and what to do. */
tp_status cuda_device_count(int *out, struct tp_err *err);

/* Open GPU number `ordinal`, counted from 0. TP_E_NOTFOUND: there is no driver, no such GPU, or it
 * is too old; the message says which and what to do. */
tp_status cuda_device_open(struct device **out, int ordinal, struct tp_err *err);

/* ---- for kernels and collectives ---- */

/* Let the calling thread's calls of CUDA mean this GPU. False: the device has failed. */
bool cuda_device_begin(struct device *d);

/* Prepare the calling thread to launch a kernel on a queue. False: the device has failed, and
 * nothing is to be queued. */
bool cuda_queue_begin(struct device_queue *q);

struct CUstream_st *cuda_queue_stream(const struct device_queue *q);

/* The GPU's number of processors (CUDA: multiprocessors). */
int cuda_queue_processors(const struct device_queue *q);

/* What kernels keep for a queue, such as a handle of a library. `close`, if it is set, is called
 * when the queue is closed and nothing of it runs any more. */
struct cuda_attachment {
    void *p;
    void (*close)(void *p);
};
struct cuda_attachment *cuda_queue_attachment(struct device_queue *q);

/* Keep a failure: what was queued, and CUDA's error, 0 for none. */
void cuda_queue_check(struct device_queue *q, const char *what, int error);

#ifdef __cplusplus
}
#endif

#endif
