/* device/cuda/cuda.c - see device/cuda/cuda.h. */
#include "device/cuda/cuda.h"

#include <cuda_runtime_api.h>
#include <inttypes.h>
#include <stdlib.h>

#include "device/cuda/cuda_copy.h"
#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_graph.h"
#include "device/cuda/cuda_memory.h"
#include "device/failure.h"

enum { OLDEST_MAJOR = 8 }; /* compute capability of the oldest GPUs that kernels are compiled for */

struct cuda_device {
    struct device device;
    int ordinal, processors;
    int64_t pitch_max; /* of a copy of several rows */
    struct cuda_memory memory;
    struct device_failure failure;
};

enum { SCRATCHES_MAX = 48 }; /* each is twice as large as the one before */

struct cuda_queue {
    struct device_queue queue;
    cudaStream_t stream;
    void *scratch[SCRATCHES_MAX]; /* the last one is in use; queued work may still use the others */
    int n_scratches;
    int64_t scratch_bytes; /* of the last one */
    struct cuda_attachment attachment;
};

struct cuda_event {
    struct device_event event;
    cudaEvent_t event_of_cuda;
};

static struct cuda_device *device_of(const struct device *d)
{
    return (struct cuda_device *)(uintptr_t)d; /* its first member */
}

static struct cuda_queue *queue_of(const struct device_queue *q)
{
    return (struct cuda_queue *)(uintptr_t)q;
}

static struct cuda_event *event_of(const struct device_event *e)
{
    return (struct cuda_event *)(uintptr_t)e;
}

/* ---- failure ---- */

static void cuda_fail(struct device *d, const struct tp_err *err)
{
    device_failure_keep(&device_of(d)->failure, err);
}

/* Keep a failure of work on a queue. */
static void check(struct cuda_device *c, const char *what, cudaError_t e)
{
    struct tp_err err;

    if (e == cudaSuccess)
        return;
    cuda_error_fail(&err, c->ordinal, what, e);
    cuda_fail(&c->device, &err);
}

/* Any thread may use the device, and CUDA keeps a current GPU for each thread. False: the device
 * has failed. */
static bool begin(struct cuda_device *c)
{
    if (device_failure_has(&c->failure))
        return false;
    check(c, "work on the GPU", cudaSetDevice(c->ordinal));
    return !device_failure_has(&c->failure);
}

bool cuda_device_begin(struct device *d)
{
    return begin(device_of(d));
}

bool cuda_queue_begin(struct device_queue *q)
{
    return begin(device_of(q->device));
}

struct CUstream_st *cuda_queue_stream(const struct device_queue *q)
{
    return queue_of(q)->stream;
}

struct cuda_attachment *cuda_queue_attachment(struct device_queue *q)
{
    return &queue_of(q)->attachment;
}

int cuda_queue_processors(const struct device_queue *q)
{
    return device_of(q->device)->processors;
}

void cuda_queue_check(struct device_queue *q, const char *what, int error)
{
    check(device_of(q->device), what, (cudaError_t)error);
}

/* ---- memory ---- */

static tp_status cuda_alloc(struct device *d, void **out, int64_t n_bytes, struct tp_err *err)
{
    struct cuda_device *c = device_of(d);

    return begin(c) ? cuda_memory_alloc(&c->memory, out, n_bytes, false, err)
                    : device_failure_get(&c->failure, err);
}

static tp_status cuda_alloc_pinned(struct device *d, void **out, int64_t n_bytes,
                                   struct tp_err *err)
{
    struct cuda_device *c = device_of(d);

    return begin(c) ? cuda_memory_alloc(&c->memory, out, n_bytes, true, err)
                    : device_failure_get(&c->failure, err);
}

static void cuda_free(struct device *d, void *p)
{
    struct cuda_device *c = device_of(d);

    (void)cudaSetDevice(c->ordinal);
    cuda_memory_free(&c->memory, p);
}

static tp_status cuda_adopt(struct device *d, void *p, int64_t n_bytes, struct tp_err *err)
{
    (void)p;
    return tp_fail(err, TP_E_INTERNAL,
                   "GPU %d cannot use %" PRId64 " bytes of a transport in host memory",
                   device_of(d)->ordinal, n_bytes);
}

/* ---- queues ---- */

/* Communication goes first, because other ranks wait for it. */
static cudaError_t open_stream(cudaStream_t *out, enum device_queue_kind kind)
{
    int least = 0, greatest = 0;
    cudaError_t e = cudaDeviceGetStreamPriorityRange(&least, &greatest);

    if (e != cudaSuccess)
        return e;
    return cudaStreamCreateWithPriority(out, cudaStreamNonBlocking,
                                        kind == DEVICE_QUEUE_COMM ? greatest : least);
}

static tp_status cuda_queue_open(struct device *d, struct device_queue **out,
                                 enum device_queue_kind kind, struct tp_err *err)
{
    struct cuda_device *c = device_of(d);
    struct cuda_queue *q;
    cudaError_t e;

    if (!begin(c))
        return device_failure_get(&c->failure, err);
    if (!(q = calloc(1, sizeof *q)))
        return tp_fail(err, TP_E_NOMEM, "out of memory for a queue of GPU %d", c->ordinal);
    q->queue = (struct device_queue){ .device = d, .kind = kind };
    if ((e = open_stream(&q->stream, kind)) != cudaSuccess) {
        free(q);
        return cuda_error_fail(err, c->ordinal, "opening a stream", e);
    }
    *out = &q->queue;
    return TP_OK;
}

static void cuda_queue_close(struct device_queue *queue)
{
    struct cuda_device *c = device_of(queue->device);
    struct cuda_queue *q = queue_of(queue);

    if (begin(c))
        check(c, "work on a queue", cudaStreamSynchronize(q->stream));
    if (q->attachment.close)
        q->attachment.close(q->attachment.p);
    for (int i = 0; i < q->n_scratches; i++)
        (void)cudaFree(q->scratch[i]);
    (void)cudaStreamDestroy(q->stream);
    free(q);
}

static void cuda_submit(struct device_queue *q, const struct device_operation *o)
{
    struct cuda_device *c = device_of(q->device);
    struct tp_err err;

    (void)o;
    tp_fail(&err, TP_E_INTERNAL, "GPU %d cannot run a function of the host", c->ordinal);
    cuda_fail(&c->device, &err);
}

/* When the memory has to grow, which happens in the first step only, the old memory is kept.
 * Freeing it would wait for all queued work, and that may wait for messages of which this rank has
 * not queued its part yet. */
static void *cuda_scratch(struct device_queue *queue, int64_t n_bytes)
{
    struct cuda_device *c = device_of(queue->device);
    struct cuda_queue *q = queue_of(queue);
    struct tp_err err;
    void *p = NULL;

    if (q->n_scratches && n_bytes <= q->scratch_bytes)
        return q->scratch[q->n_scratches - 1];
    if (!begin(c))
        return NULL;
    n_bytes = n_bytes > 2 * q->scratch_bytes ? n_bytes : 2 * q->scratch_bytes;
    if (q->n_scratches == SCRATCHES_MAX)
        tp_fail(&err, TP_E_INTERNAL, "scratch has grown %d times", q->n_scratches);
    if (q->n_scratches == SCRATCHES_MAX || cuda_memory_take(&c->memory, &p, n_bytes, &err)) {
        cuda_fail(&c->device, &err);
        return NULL;
    }
    q->scratch[q->n_scratches++] = p;
    q->scratch_bytes = n_bytes;
    return p;
}

/* ---- copies ---- */

static void cuda_queue_copy(struct device_queue *q, const struct device_copy *copy)
{
    struct cuda_device *c = device_of(q->device);

    if (begin(c))
        cuda_queue_check(q, "a copy", cuda_copy(queue_of(q)->stream, copy, c->pitch_max));
}

static void cuda_fill(struct device_queue *q, void *dst, int byte, int64_t n_bytes)
{
    struct cuda_device *c = device_of(q->device);

    if (begin(c))
        check(c, "a fill", cudaMemsetAsync(dst, byte, (size_t)n_bytes, queue_of(q)->stream));
}

/* ---- events ---- */

static tp_status cuda_event_open(struct device *d, struct device_event **out, struct tp_err *err)
{
    struct cuda_device *c = device_of(d);
    struct cuda_event *x;
    cudaError_t e;

    if (!begin(c))
        return device_failure_get(&c->failure, err);
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

static void cuda_event_close(struct device_event *e)
{
    (void)cudaEventDestroy(event_of(e)->event_of_cuda);
    free(event_of(e));
}

static void cuda_record(struct device_queue *q, struct device_event *e)
{
    struct cuda_device *c = device_of(q->device);

    if (begin(c))
        check(c, "recording an event",
              cudaEventRecord(event_of(e)->event_of_cuda, queue_of(q)->stream));
}

static void cuda_wait(struct device_queue *q, struct device_event *e)
{
    struct cuda_device *c = device_of(q->device);

    if (begin(c))
        check(c, "waiting for an event",
              cudaStreamWaitEvent(queue_of(q)->stream, event_of(e)->event_of_cuda, 0));
}

static tp_status cuda_sync(struct device_event *e, struct tp_err *err)
{
    struct cuda_device *c = device_of(e->device);

    if (begin(c))
        check(c, "queued work", cudaEventSynchronize(event_of(e)->event_of_cuda));
    return device_failure_get(&c->failure, err);
}

/* After a failure all events count as passed: nothing runs any more. */
static bool cuda_done(const struct device_event *e)
{
    return cudaEventQuery(event_of(e)->event_of_cuda) != cudaErrorNotReady;
}

/* ---- graphs ---- */

static void cuda_begin_graph(struct device_queue *q)
{
    struct cuda_device *c = device_of(q->device);

    if (begin(c))
        check(c, "recording a graph", (cudaError_t)cuda_graph_begin(queue_of(q)->stream));
}

/* After a failure the stream still records, so the recording is ended in any case. */
static struct device_graph *cuda_end_graph(struct device_queue *q)
{
    struct cuda_device *c = device_of(q->device);
    struct device_graph *g;

    check(c, "recording a graph", (cudaError_t)cuda_graph_end(&g, queue_of(q)->stream));
    if (!g || begin(c))
        return g;
    cuda_graph_close(g);
    return NULL;
}

static void cuda_launch_graph(struct device_queue *q, struct device_graph *g)
{
    struct cuda_device *c = device_of(q->device);

    if (begin(c))
        check(c, "the launch of a graph", (cudaError_t)cuda_graph_launch(g, queue_of(q)->stream));
}

static void cuda_close_graph(struct device *d, struct device_graph *g)
{
    (void)cudaSetDevice(device_of(d)->ordinal);
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
    struct cuda_device *c = device_of(d);

    (void)cudaSetDevice(c->ordinal);
    cuda_memory_close(&c->memory);
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
    .submit = cuda_submit,
    .scratch = cuda_scratch,
    .copy = cuda_queue_copy,
    .fill = cuda_fill,
    .event_open = cuda_event_open,
    .event_close = cuda_event_close,
    .record = cuda_record,
    .wait = cuda_wait,
    .sync = cuda_sync,
    .done = cuda_done,
    .graph_begin = cuda_begin_graph,
    .graph_end = cuda_end_graph,
    .graph_launch = cuda_launch_graph,
    .graph_close = cuda_close_graph,
    .fail = cuda_fail,
    .watch = cuda_watch,
    .times = cuda_times,
};

/* ---- opening ---- */

static tp_status check_driver(struct tp_err *err)
{
    int supported = 0, needed = 0;

    (void)cudaDriverGetVersion(&supported);
    (void)cudaRuntimeGetVersion(&needed);
    if (supported == 0)
        return tp_fail(err, TP_E_NOTFOUND,
                       "no NVIDIA driver is installed on this machine, so it has no usable GPU");
    if (supported / 1000 < needed / 1000)
        return tp_fail(err, TP_E_NOTFOUND,
                       "the NVIDIA driver is too old: it supports CUDA %d.%d, and %d.0 is needed. "
                       "Install a newer driver",
                       supported / 1000, supported % 1000 / 10, needed / 1000);
    return TP_OK;
}

static tp_status count_gpus(int *out, struct tp_err *err)
{
    int n = 0;
    cudaError_t e = cudaGetDeviceCount(&n);

    if (e != cudaSuccess && e != cudaErrorNoDevice)
        return tp_fail(err, TP_E_NOTFOUND, "the GPUs of this machine cannot be used: %s",
                       cudaGetErrorString(e));
    *out = n;
    return TP_OK;
}

tp_status cuda_device_count(int *out, struct tp_err *err)
{
    tp_status st;

    if ((st = check_driver(err)) || (st = count_gpus(out, err)))
        return st;
    return *out > 0 ? TP_OK
                    : tp_fail(err, TP_E_NOTFOUND,
                              "this machine has an NVIDIA driver, and no GPU that this process "
                              "may use");
}

static tp_status check_gpu(int ordinal, struct tp_err *err)
{
    int n = 0, major = 0, minor = 0;
    tp_status st = count_gpus(&n, err);

    if (st)
        return st;
    if (ordinal < 0 || ordinal >= n)
        return tp_fail(err, TP_E_NOTFOUND,
                       "there is no GPU %d: this machine has %d usable GPUs, counted from 0",
                       ordinal, n);
    (void)cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal);
    (void)cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal);
    if (major < OLDEST_MAJOR)
        return tp_fail(err, TP_E_NOTFOUND,
                       "GPU %d is too old: its compute capability is %d.%d, and %d.0 is needed",
                       ordinal, major, minor, OLDEST_MAJOR);
    return TP_OK;
}

static tp_status start(struct cuda_device *c, struct tp_err *err)
{
    int pitch = 0;
    cudaError_t e = cudaSetDevice(c->ordinal);

    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&c->processors, cudaDevAttrMultiProcessorCount, c->ordinal);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&pitch, cudaDevAttrMaxPitch, c->ordinal);
    if (e != cudaSuccess)
        return cuda_error_fail(err, c->ordinal, "opening the GPU", e);
    c->pitch_max = pitch;
    return cuda_memory_open(&c->memory, c->ordinal, err);
}

tp_status cuda_device_open(struct device **out, int ordinal, struct tp_err *err)
{
    struct cuda_device *c;
    tp_status st;

    if ((st = check_driver(err)) || (st = check_gpu(ordinal, err)))
        return st;
    if (!(c = calloc(1, sizeof *c)))
        return tp_fail(err, TP_E_NOMEM, "out of memory for GPU %d", ordinal);
    c->device = (struct device){ .ops = &CUDA_OPS };
    c->ordinal = ordinal;
    device_failure_open(&c->failure);
    if ((st = start(c, err))) {
        cuda_close(&c->device);
        return st;
    }
    *out = &c->device;
    return TP_OK;
}
