/* device/cuda/cuda_event.c - see device/cuda/cuda_event.h. */
#include "device/cuda/cuda_event.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>

#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_queue.h"

struct cuda_event {
    struct device_event event;
    cudaEvent_t event_of_cuda;
};

static struct cuda_event *event_of(const struct device_event *e)
{
    return (struct cuda_event *)(uintptr_t)e; /* its first member */
}

tp_status cuda_event_open(struct device *d, struct device_event **out, struct tp_err *err)
{
    struct cuda_device *c = cuda_device_of(d);
    struct cuda_event *x;
    cudaError_t e;

    if (!cuda_device_begin(d))
        return cuda_device_failure(d, err);
    if (!(x = calloc(1, sizeof *x)))
        return tp_fail(err, TP_E_NOMEM, "out of memory for an event of GPU %d", c->ordinal);
    x->event.device = d;
    e = cudaEventCreateWithFlags(&x->event_of_cuda, cudaEventDisableTiming | cudaEventBlockingSync);
    if (e != cudaSuccess) {
        free(x);
        return cuda_error_fail(err, c->ordinal, "opening an event", e);
    }
    *out = &x->event;
    return TP_OK;
}

void cuda_event_close(struct device_event *e)
{
    (void)cudaEventDestroy(event_of(e)->event_of_cuda);
    free(event_of(e));
}

void cuda_event_record(struct device_queue *q, struct device_event *e)
{
    if (cuda_device_begin(q->device))
        cuda_device_check(q->device, "recording an event",
                          cudaEventRecord(event_of(e)->event_of_cuda, cuda_queue_stream(q)));
}

void cuda_event_wait(struct device_queue *q, struct device_event *e)
{
    if (cuda_device_begin(q->device))
        cuda_device_check(q->device, "waiting for an event",
                          cudaStreamWaitEvent(cuda_queue_stream(q), event_of(e)->event_of_cuda, 0));
}

tp_status cuda_event_sync(struct device_event *e, struct tp_err *err)
{
    if (cuda_device_begin(e->device))
        cuda_device_check(e->device, "queued work",
                          cudaEventSynchronize(event_of(e)->event_of_cuda));
    return cuda_device_failure(e->device, err);
}

/* After a failure all events count as passed: nothing runs any more. */
bool cuda_event_done(const struct device_event *e)
{
    cudaError_t error;

    if (!cuda_device_begin(e->device))
        return true;
    if ((error = cudaEventQuery(event_of(e)->event_of_cuda)) == cudaErrorNotReady)
        return false;
    cuda_device_check(e->device, "queued work", error);
    return true;
}
