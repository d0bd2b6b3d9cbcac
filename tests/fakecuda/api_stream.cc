/*
 * tests/fakecuda/api_stream.cc - CUDA's runtime API: streams, events and waiting for them.
 */
#include <cuda_runtime_api.h>

#include "tests/fakecuda/api.h"
#include "tests/fakecuda/graph.h"
#include "tests/fakecuda/handle.h"
#include "tests/fakecuda/stream.h"

using fake::api_call;

/* ---- streams ---- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags)
{
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags, int)
{
    api_call call;

    if (fake::device_failure != cudaSuccess)
        return call.done();
    *stream = fake::stream_new(!(flags & cudaStreamNonBlocking));
    return cudaSuccess;
}

static cudaError_t finish(const api_call &call, cudaStream_t stream)
{
    cudaStream_t s = fake::stream_of(stream);

    fake::run_until({ s, s->queued }, s->now);
    return call.done();
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    api_call call;

    fake::graph_forbids("cudaStreamDestroy");
    fake::api_check_stream("cudaStreamDestroy", stream);
    finish(call, stream);
    fake::stream_end(stream);
    return call.done();
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    api_call call;

    fake::api_check_stream("cudaStreamSynchronize", stream);
    fake::graph_forbids("cudaStreamSynchronize");
    fake::api_record("cudaStreamSynchronize");
    return finish(call, stream);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int)
{
    api_call call;

    fake::api_check_stream("cudaStreamWaitEvent", stream);
    fake::enqueue_wait(stream, event);
    return call.done();
}

cudaError_t cudaDeviceSynchronize(void)
{
    api_call call;

    fake::graph_forbids("cudaDeviceSynchronize");
    fake::api_record("cudaDeviceSynchronize");
    fake::run_all();
    return call.done();
}

/* ---- events ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int)
{
    api_call call;

    if (fake::device_failure != cudaSuccess)
        return call.done();
    *event = new CUevent_st();
    fake::handle_created(*event);
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    api_call call;

    fake::handle_destroyed(event);
    delete event;
    return call.done();
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    api_call call;

    fake::api_check_stream("cudaEventRecord", stream);
    fake::record(event, stream);
    return call.done();
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    api_call call;

    fake::graph_forbids("cudaEventSynchronize");
    fake::graph_check_event("cudaEventSynchronize", event);
    fake::api_record("cudaEventSynchronize");
    if (event->at.stream)
        fake::run_until(event->at, event->now);
    return call.done();
}

/* A host that asks again and again sees the device make progress. */
cudaError_t cudaEventQuery(cudaEvent_t event)
{
    api_call call;

    fake::graph_forbids("cudaEventQuery");
    fake::graph_check_event("cudaEventQuery", event);
    if (event->at.stream && (fake::is_passed(event->at) || fake::random_below(4) == 0))
        fake::run_until(event->at, event->now); /* the host knows now what came before it */
    if (fake::device_failure != cudaSuccess)
        return call.done();
    return fake::is_passed(event->at) ? cudaSuccess : cudaErrorNotReady;
}
