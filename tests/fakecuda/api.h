/*
 * tests/fakecuda/api.h - what all functions of CUDA's runtime API do at their beginning and end.
 */
#ifndef TESTS_FAKECUDA_API_H
#define TESTS_FAKECUDA_API_H

#include <cuda_runtime_api.h>

#include <mutex>

#include "tests/fakecuda/stream.h"

namespace fake
{

/* One call of the API: no other thread is in one. The first begins the device. */
struct api_call {
    std::lock_guard<std::recursive_mutex> guard;

    api_call();
    cudaError_t fail(cudaError_t error) const; /* returns `error`, and keeps it for the thread */
    cudaError_t done() const;                  /* what a call that has succeeded returns */
};

/* A call that allocates, frees or waits: a line of the file FAKECUDA_HOST_CALLS. */
void api_record(const char *name);

/* A call names a stream, which must exist. */
void api_check_stream(const char *call, cudaStream_t s);

/* A call that allocates may let what is queued later wait for what is queued so far, on all streams
 * ("implicit synchronization" of CUDA's programming guide). Here the host waits, by chance. */
void api_wait_by_chance();

size_t api_memory_left(); /* bytes of the device's memory */
size_t api_memory_total();

/* ---- for libraries on top of CUDA ---- */

/* enqueue, for libraries on top of CUDA: as a call of the API, on a stream that must exist. */
void api_enqueue(cudaStream_t s, const char *name, std::function<void()> run);
void api_enqueue_made(cudaStream_t s, const char *name, const operation_maker &make);
/* The host waits for something else: let the device complete an operation, if it can. */
void api_go_on();
/* Any other call, on a stream that must exist; NULL: on none. */
cudaError_t api_run(const char *name, cudaStream_t s, const std::function<cudaError_t()> &run);

} // namespace fake

#endif
