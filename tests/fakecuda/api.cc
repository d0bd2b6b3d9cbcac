/*
 * tests/fakecuda/api.cc - the functions of CUDA's runtime API. Any thread may call them.
 */
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unistd.h>

#include "tests/fakecuda/control.h"
#include "tests/fakecuda/graph.h"
#include "tests/fakecuda/stream.h"

static_assert(cudaErrorInvalidValue == 1 && cudaErrorMemoryAllocation == 2 &&
                  cudaErrorInvalidConfiguration == 9 && cudaErrorInvalidPitchValue == 12 &&
                  cudaErrorInsufficientDriver == 35 && cudaErrorNoDevice == 100 &&
                  cudaErrorInvalidDevice == 101 && cudaErrorNotReady == 600 &&
                  cudaErrorIllegalAddress == 700 && cudaErrorLaunchFailure == 719,
              "the numbers of errors are NVIDIA's");
static_assert(cudaMemcpyDefault == 4 && cudaDevAttrMaxPitch == 11 &&
                  cudaDevAttrMultiProcessorCount == 16 && cudaDevAttrComputeCapabilityMajor == 75 &&
                  cudaDevAttrComputeCapabilityMinor == 76 && cudaStreamNonBlocking == 1 &&
                  cudaEventBlockingSync == 1 && cudaEventDisableTiming == 2 &&
                  cudaHostAllocPortable == 1,
              "the numbers of options are NVIDIA's");

static std::recursive_mutex lock;
static thread_local cudaError_t last_error;
static thread_local int current_device;
static int n_devices = 1, driver_version = 13000;
static int64_t memory_bytes = (int64_t)1 << 30;
static bool has_begun;

static uint64_t number_from(const char *variable, uint64_t otherwise)
{
    const char *text = getenv(variable);

    return text ? strtoull(text, nullptr, 0) : otherwise;
}

static void begin()
{
    fake::seed(number_from("FAKECUDA_SEED", 0));
    n_devices = (int)number_from("FAKECUDA_GPUS", 1);
    driver_version = (int)number_from("FAKECUDA_DRIVER", 13000);
    memory_bytes = (int64_t)number_from("FAKECUDA_MEMORY", 1 << 30);
    fake::memory_begin();
}

/* One call of the API: no other thread is in one. */
struct api_call {
    std::lock_guard<std::recursive_mutex> guard;

    api_call() : guard(lock)
    {
        if (has_begun)
            return;
        has_begun = true;
        begin();
    }
    cudaError_t fail(cudaError_t error) const
    {
        return last_error = error;
    }
    /* What a call that has succeeded returns. */
    cudaError_t done() const
    {
        return fake::device_failure == cudaSuccess ? cudaSuccess : fail(fake::device_failure);
    }
};

/* A call that allocates, frees or waits: a line of the file FAKECUDA_HOST_CALLS. */
static void record(const char *name)
{
    fake::append_line("FAKECUDA_HOST_CALLS", "%d %s %lld %lld %llu\n", (int)getpid(), name,
                      (long long)fake::memory_used(fake::DEVICE_MEMORY),
                      (long long)fake::memory_used(fake::PINNED_MEMORY),
                      (unsigned long long)fake::n_operations());
}

/* ---- errors and devices ---- */

cudaError_t cudaGetLastError(void)
{
    cudaError_t e = last_error;

    last_error = fake::device_failure;
    return e;
}

cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

const char *cudaGetErrorString(cudaError_t error)
{
    static const struct {
        cudaError_t error;
        const char *text;
    } texts[] = {
        { cudaSuccess, "no error" },
        { cudaErrorInvalidValue, "invalid argument" },
        { cudaErrorMemoryAllocation, "out of memory" },
        { cudaErrorInvalidConfiguration, "invalid configuration argument" },
        { cudaErrorInvalidPitchValue, "invalid pitch argument" },
        { cudaErrorInsufficientDriver,
          "CUDA driver version is insufficient for CUDA runtime version" },
        { cudaErrorNoDevice, "no CUDA-capable device is detected" },
        { cudaErrorInvalidDevice, "invalid device ordinal" },
        { cudaErrorNotReady, "device not ready" },
        { cudaErrorIllegalAddress, "an illegal memory access was encountered" },
        { cudaErrorLaunchFailure, "unspecified launch failure" },
        { cudaErrorStreamCaptureInvalidated,
          "operation failed due to a previous error during capture" },
    };

    for (const auto &t : texts)
        if (t.error == error)
            return t.text;
    return "unrecognized error code";
}

cudaError_t cudaDriverGetVersion(int *version)
{
    api_call call;

    *version = driver_version;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = 13000;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    api_call call;

    *count = 0;
    if (driver_version < 13000)
        return call.fail(cudaErrorInsufficientDriver);
    if (n_devices == 0)
        return call.fail(cudaErrorNoDevice);
    *count = n_devices;
    return call.done();
}

cudaError_t cudaGetDevice(int *device)
{
    *device = current_device;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    api_call call;

    if (device < 0 || device >= n_devices)
        return call.fail(cudaErrorInvalidDevice);
    current_device = device;
    return call.done();
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device)
{
    api_call call;

    if (device < 0 || device >= n_devices)
        return call.fail(cudaErrorInvalidDevice);
    switch (attr) {
    case cudaDevAttrMaxPitch:
        *value = 0x7fffffff;
        return call.done();
    case cudaDevAttrMultiProcessorCount:
        *value = 2;
        return call.done();
    case cudaDevAttrComputeCapabilityMajor:
        *value = 9;
        return call.done();
    case cudaDevAttrComputeCapabilityMinor:
        *value = 0;
        return call.done();
    default:
        fake::report(nullptr, "cudaDeviceGetAttribute: the fake device has no attribute %d",
                     (int)attr);
    }
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    api_call call;

    fake::graph_forbids("cudaDeviceSynchronize");
    record("cudaDeviceSynchronize");
    fake::run_all();
    return call.done();
}

/* ---- memory ---- */

cudaError_t cudaMalloc(void **p, size_t size)
{
    api_call call;

    fake::graph_forbids("cudaMalloc");
    if (fake::device_failure != cudaSuccess)
        return call.done();
    if (size > (size_t)(memory_bytes - fake::memory_used(fake::DEVICE_MEMORY)) ||
        !(*p = fake::memory_take(fake::DEVICE_MEMORY, size)))
        return call.fail(cudaErrorMemoryAllocation);
    record("cudaMalloc");
    return cudaSuccess;
}

/* CUDA waits until the device is idle. */
cudaError_t cudaFree(void *p)
{
    api_call call;

    fake::graph_forbids("cudaFree");
    if (!p)
        return call.done();
    fake::run_all();
    if (!fake::memory_give(fake::DEVICE_MEMORY, p))
        fake::report(nullptr, "cudaFree of %p, which is no device memory", p);
    record("cudaFree");
    return call.done();
}

cudaError_t cudaHostAlloc(void **p, size_t size, unsigned int)
{
    api_call call;

    fake::graph_forbids("cudaHostAlloc");
    if (fake::device_failure != cudaSuccess)
        return call.done();
    if (!(*p = fake::memory_take(fake::PINNED_MEMORY, size)))
        return call.fail(cudaErrorMemoryAllocation);
    record("cudaHostAlloc");
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *p)
{
    api_call call;

    fake::graph_forbids("cudaFreeHost");
    if (!p)
        return call.done();
    fake::run_all();
    if (!fake::memory_give(fake::PINNED_MEMORY, p))
        fake::report(nullptr, "cudaFreeHost of %p, which is no pinned memory", p);
    record("cudaFreeHost");
    return call.done();
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    api_call call;

    *total = (size_t)memory_bytes;
    *available = (size_t)(memory_bytes - fake::memory_used(fake::DEVICE_MEMORY));
    return call.done();
}

/* ---- copies ---- */

static const char *kind_of(const void *p)
{
    return fake::is_kind(fake::DEVICE_MEMORY, p)   ? "device"
           : fake::is_kind(fake::PINNED_MEMORY, p) ? "pinned"
                                                   : "pageable";
}

/* A copy from or to pageable memory is not asynchronous, so the product has none. */
static void check_side(const char *call, const char *side, const void *p, size_t n,
                       bool wants_device, bool any)
{
    const char *begin;
    size_t size;
    bool is_device = fake::is_kind(fake::DEVICE_MEMORY, p);
    fake::memory_kind kind = is_device ? fake::DEVICE_MEMORY : fake::PINNED_MEMORY;

    if (!fake::is_kind(kind, p))
        fake::report(nullptr,
                     "%s: the %s %p is pageable memory; only pinned memory is copied "
                     "while the host goes on",
                     call, side, p);
    if (!any && is_device != wants_device)
        fake::report(nullptr, "%s: the %s %p is %s memory, and the kind of the copy says otherwise",
                     call, side, p, kind_of(p));
    if (!fake::memory_contains(kind, p, n, &begin, &size))
        fake::report(nullptr,
                     "%s: %zu bytes of the %s %p are outside of every allocation (the one "
                     "before it: %zu bytes at %p)",
                     call, n, side, p, size, (const void *)begin);
}

static void check_copy(const char *call, void *dst, size_t dst_bytes, const void *src,
                       size_t src_bytes, cudaMemcpyKind kind)
{
    bool any = kind == cudaMemcpyDefault;

    check_side(call, "destination", dst, dst_bytes,
               kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice, any);
    check_side(call, "source", src, src_bytes,
               kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice, any);
}

static void check_stream(const char *call, cudaStream_t s)
{
    if (!fake::stream_exists(s))
        fake::report(nullptr, "%s: the stream does not exist", call);
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    return cudaMemcpy2DAsync(dst, count, src, count, count, 1, kind, stream);
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dpitch, const void *src, size_t spitch,
                              size_t width, size_t height, enum cudaMemcpyKind kind,
                              cudaStream_t stream)
{
    api_call call;

    check_stream("cudaMemcpy2DAsync", stream);
    if (width > dpitch || width > spitch || (height > 1 && (dpitch | spitch) > 0x7fffffff))
        return call.fail(cudaErrorInvalidPitchValue);
    if (width == 0 || height == 0)
        return call.done();
    check_copy("cudaMemcpy2DAsync", dst, (height - 1) * dpitch + width, src,
               (height - 1) * spitch + width, kind);
    fake::enqueue(stream, "copy", [=] {
        for (size_t r = 0; r < height; r++) {
            fake::watch_copy((char *)dst + r * dpitch, (const char *)src + r * spitch, width);
            memcpy((char *)dst + r * dpitch, (const char *)src + r * spitch, width);
        }
    });
    return call.done();
}

cudaError_t cudaMemsetAsync(void *dst, int value, size_t count, cudaStream_t stream)
{
    api_call call;

    check_stream("cudaMemsetAsync", stream);
    if (count == 0)
        return call.done();
    check_side("cudaMemsetAsync", "destination", dst, count, true, true);
    fake::enqueue(stream, "fill", [=] {
        fake::watch_fill(dst, count);
        memset(dst, value, count);
    });
    return call.done();
}

void fake::api_enqueue_made(cudaStream_t s, const char *name, const operation_maker &make)
{
    api_call call;

    check_stream(name, s);
    enqueue_made(s, name, make);
}

cudaError_t fake::api_run(const char *name, cudaStream_t s, const std::function<cudaError_t()> &run)
{
    api_call call;
    cudaError_t e;

    check_stream(name, s);
    e = run();
    return e == cudaSuccess ? call.done() : call.fail(e);
}

void fake::api_enqueue(cudaStream_t s, const char *name, std::function<void()> run)
{
    api_call call;

    check_stream(name, s);
    enqueue(s, name, std::move(run));
}

/* ---- streams and events ---- */

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
    check_stream("cudaStreamDestroy", stream);
    finish(call, stream);
    fake::stream_end(stream);
    return call.done();
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    api_call call;

    check_stream("cudaStreamSynchronize", stream);
    fake::graph_forbids("cudaStreamSynchronize");
    record("cudaStreamSynchronize");
    return finish(call, stream);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int)
{
    api_call call;

    check_stream("cudaStreamWaitEvent", stream);
    fake::enqueue_wait(stream, event);
    return call.done();
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int)
{
    api_call call;

    if (fake::device_failure != cudaSuccess)
        return call.done();
    *event = new CUevent_st();
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    api_call call;

    delete event;
    return call.done();
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    api_call call;

    check_stream("cudaEventRecord", stream);
    fake::record(event, stream);
    return call.done();
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    api_call call;

    fake::graph_forbids("cudaEventSynchronize");
    fake::graph_check_event("cudaEventSynchronize", event);
    record("cudaEventSynchronize");
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

/* ---- control ---- */

static void set_devices(int count, int version)
{
    api_call call;

    n_devices = count;
    driver_version = version;
}

static void set_memory(int64_t n_bytes)
{
    api_call call;

    memory_bytes = n_bytes;
}

static void set_seed(uint64_t seed)
{
    api_call call;

    fake::seed(seed);
}

static void set_failure(int error, int after)
{
    fake::fail_at((cudaError_t)error, after);
}

extern "C" __attribute__((visibility("default"))) const struct fakecuda_control fakecuda_control;
const struct fakecuda_control fakecuda_control = {
    set_seed,
    set_devices,
    set_memory,
    set_failure,
    fake::n_queued,
    fake::mma_products,
    fake::epilogue_products,
    fake::memory_pinned_peak,
    fake::n_operations,
};
