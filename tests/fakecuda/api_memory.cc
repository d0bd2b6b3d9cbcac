/*
 * tests/fakecuda/api_memory.cc - CUDA's runtime API: memory, copies and fills.
 */
#include <cuda_runtime_api.h>

#include <cstring>

#include "tests/fakecuda/api.h"
#include "tests/fakecuda/gpus.h"
#include "tests/fakecuda/graph.h"
#include "tests/fakecuda/stream.h"

using fake::api_call;

/* ---- memory ---- */

static cudaError_t take(const api_call &call, const char *name, void **p, size_t size)
{
    fake::graph_forbids(name);
    if (fake::device_failure != cudaSuccess)
        return call.done();
    if (size > fake::api_memory_left() || !(*p = fake::memory_take(fake::DEVICE_MEMORY, size)))
        return call.fail(cudaErrorMemoryAllocation);
    fake::api_record(name);
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **p, size_t size)
{
    api_call call;

    fake::graph_forbids("cudaMalloc");
    fake::api_wait_by_chance();
    return take(call, "cudaMalloc", p, size);
}

/* NVIDIA's makes it a node of a graph that is captured, and its memory ends with the graph. */
cudaError_t cudaMallocAsync(void **p, size_t size, cudaStream_t stream)
{
    api_call call;

    cudaError_t e;

    fake::api_check_stream("cudaMallocAsync", stream);
    e = take(call, "cudaMallocAsync", p, size);
    if (e == cudaSuccess && fake::device_failure == cudaSuccess)
        *fake::memory_flags(fake::DEVICE_MEMORY, *p) |= fake::BY_STREAM;
    return e;
}

/* An allocation that nothing frees yet. */
static unsigned *flags_of(const char *name, void *p)
{
    unsigned *flags = fake::is_kind(fake::DEVICE_MEMORY, p)
                          ? fake::memory_flags(fake::DEVICE_MEMORY, p)
                          : nullptr;

    if (!flags)
        fake::report(nullptr, "%s of %p, which is not device memory", name, p);
    if (*flags & fake::IS_ENDING)
        fake::report(nullptr, "%s of %p, which cudaFreeAsync frees", name, p);
    return flags;
}

/* CUDA waits until the device is idle; but not for memory of cudaMallocAsync: the caller has to
 * know that all accesses are complete. */
cudaError_t cudaFree(void *p)
{
    api_call call;

    fake::graph_forbids("cudaFree");
    if (!p)
        return call.done();
    if (*flags_of("cudaFree", p) & fake::BY_STREAM) {
        fake::memory_give_after("cudaFree", p, fake::host_clock());
    } else {
        fake::run_all();
        fake::memory_give(fake::DEVICE_MEMORY, p);
    }
    fake::api_record("cudaFree");
    return call.done();
}

/* In the order of the stream, also of memory of cudaMalloc. In a capture it would have to be memory
 * that the graph allocates, which is forbidden here. */
cudaError_t cudaFreeAsync(void *p, cudaStream_t stream)
{
    api_call call;

    fake::api_check_stream("cudaFreeAsync", stream);
    fake::graph_forbids("cudaFreeAsync");
    if (!p)
        return call.fail(cudaErrorInvalidValue);
    *flags_of("cudaFreeAsync", p) |= fake::IS_ENDING;
    fake::enqueue(stream, "free",
                  [=] { fake::memory_give_after("cudaFreeAsync", p, *fake::now_running.before); });
    fake::api_record("cudaFreeAsync");
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
    fake::api_record("cudaHostAlloc");
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
        fake::report(nullptr, "cudaFreeHost of %p, which is not pinned memory", p);
    fake::api_record("cudaFreeHost");
    return call.done();
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    api_call call;

    if (const cudaError_t e = fake::gpus_busy(); e != cudaSuccess)
        return call.fail(e);
    *total = fake::api_memory_total();
    *available = fake::api_memory_left();
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

    fake::api_check_stream("cudaMemcpy2DAsync", stream);
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

    fake::api_check_stream("cudaMemsetAsync", stream);
    if (count == 0)
        return call.done();
    check_side("cudaMemsetAsync", "destination", dst, count, true, true);
    fake::enqueue(stream, "fill", [=] {
        fake::watch_fill(dst, count);
        memset(dst, value, count);
    });
    return call.done();
}
