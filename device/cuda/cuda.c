/* device/cuda/cuda.c - see device/cuda/cuda.h. */
#include "device/cuda/cuda.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>

#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_event.h"
#include "device/cuda/cuda_gpu.h"
#include "device/cuda/cuda_graph.h"
#include "device/cuda/cuda_queue.h"

/* ---- memory ---- */

static tp_status cuda_alloc(struct device *d, void **out, int64_t n_bytes, struct tp_err *err)
{
    struct cuda_device *c = cuda_device_of(d);

    return cuda_device_begin(d) ? cuda_memory_alloc(&c->memory, out, n_bytes, false, err)
                                : cuda_device_failure(d, err);
}

static tp_status cuda_alloc_pinned(struct device *d, void **out, int64_t n_bytes,
                                   struct tp_err *err)
{
    struct cuda_device *c = cuda_device_of(d);

    return cuda_device_begin(d) ? cuda_memory_alloc(&c->memory, out, n_bytes, true, err)
                                : cuda_device_failure(d, err);
}

static void cuda_free(struct device *d, void *p)
{
    struct cuda_device *c = cuda_device_of(d);

    cuda_memory_free(&c->memory, p, cuda_device_begin(d));
}

static tp_status cuda_adopt(struct device *d, void *p, int64_t n_bytes, struct tp_err *err)
{
    (void)p;
    return tp_fail(err, TP_E_INTERNAL, "GPU %d cannot use %lld bytes of a transport in host memory",
                   cuda_device_of(d)->ordinal, (long long)n_bytes);
}

/* ---- graphs ---- */

static void cuda_begin_graph(struct device_queue *q)
{
    if (cuda_device_begin(q->device))
        cuda_device_check(q->device, "recording a graph", cuda_graph_begin(cuda_queue_stream(q)));
}

/* After a failure the stream still records, so the recording is ended in any case. */
static struct device_graph *cuda_end_graph(struct device_queue *q)
{
    struct device_graph *g;

    cuda_device_check(q->device, "recording a graph", cuda_graph_end(&g, cuda_queue_stream(q)));
    if (!g || cuda_device_begin(q->device))
        return g;
    cuda_graph_close(g);
    return NULL;
}

static void cuda_launch_graph(struct device_queue *q, struct device_graph *g)
{
    if (cuda_device_begin(q->device))
        cuda_device_check(q->device, "the launch of a graph",
                          cuda_graph_launch(g, cuda_queue_stream(q)));
}

static void cuda_close_graph(struct device *d, struct device_graph *g)
{
    (void)cudaSetDevice(cuda_device_of(d)->ordinal);
    cuda_graph_close(g);
}

/* ---- the device ---- */

/* No queue has a thread of the host, so there is nothing to report. */
static void cuda_watch(struct device *d, void (*fn)(void *ctx, bool waits), void *ctx)
{
    (void)d;
    (void)fn;
    (void)ctx;
}

static void cuda_times(const struct device *d, struct device_times *out)
{
    (void)d;
    *out = (struct device_times){ 0 };
}

static void cuda_close(struct device *d)
{
    struct cuda_device *c = cuda_device_of(d);

    cuda_memory_close(&c->memory, cuda_device_begin(d));
    device_failure_close(&c->failure);
    free(c);
}

static const struct device_ops CUDA_OPS = {
    .alloc = cuda_alloc,
    .alloc_pinned = cuda_alloc_pinned,
    .free = cuda_free,
    .adopt = cuda_adopt,
    .close = cuda_close,
    .queue_open = cuda_queue_open,
    .queue_close = cuda_queue_close,
    .submit = cuda_queue_submit,
    .scratch = cuda_queue_scratch,
    .copy = cuda_queue_copy,
    .fill = cuda_queue_fill,
    .event_open = cuda_event_open,
    .event_close = cuda_event_close,
    .record = cuda_event_record,
    .wait = cuda_event_wait,
    .sync = cuda_event_sync,
    .done = cuda_event_done,
    .graph_begin = cuda_begin_graph,
    .graph_end = cuda_end_graph,
    .graph_launch = cuda_launch_graph,
    .graph_close = cuda_close_graph,
    .fail = cuda_device_fail,
    .watch = cuda_watch,
    .times = cuda_times,
};

/* ---- opening ---- */

static tp_status start(struct cuda_device *c, struct tp_err *err)
{
    int pitch = 0, major = 0, minor = 0;
    cudaError_t e = cudaSetDevice(c->ordinal);

    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&c->processors, cudaDevAttrMultiProcessorCount, c->ordinal);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&pitch, cudaDevAttrMaxPitch, c->ordinal);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, c->ordinal);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, c->ordinal);
    if (e != cudaSuccess)
        return cuda_error_fail(err, c->ordinal, "opening the GPU", e);
    c->pitch_max = pitch;
    c->capability = 10 * major + minor;
    return cuda_memory_open(&c->memory, c->ordinal, err);
}

tp_status cuda_device_open(struct device **out, int ordinal, struct tp_err *err)
{
    struct cuda_device *c;
    tp_status st;

    if ((st = cuda_gpu_check(ordinal, err)))
        return st;
    if (!(c = calloc(1, sizeof *c)))
        return tp_fail(err, TP_E_NOMEM, "out of memory for GPU %d", ordinal);
    c->device = (struct device){ .ops = &CUDA_OPS, .pins_in_threads = true };
    c->ordinal = ordinal;
    device_failure_open(&c->failure);
    if ((st = start(c, err))) {
        cuda_close(&c->device);
        return st;
    }
    *out = &c->device;
    return TP_OK;
}
