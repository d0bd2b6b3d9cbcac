/*
 * tests/fakecuda/api.cc - CUDA's runtime API: errors, devices, and what all its functions share.
 * Any thread may call them. The others are in api_memory.cc, api_stream.cc and graph.cc.
 */
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <unistd.h>

#include "tests/fakecuda/api.h"
#include "tests/fakecuda/control.h"
#include "tests/fakecuda/gpus.h"
#include "tests/fakecuda/graph.h"
#include "tests/fakecuda/handle.h"
#include "tests/fakecuda/stream.h"

static_assert(cudaErrorInvalidValue == 1 && cudaErrorMemoryAllocation == 2 &&
                  cudaErrorInvalidConfiguration == 9 && cudaErrorInvalidPitchValue == 12 &&
                  cudaErrorInsufficientDriver == 35 && cudaErrorDevicesUnavailable == 46 &&
                  cudaErrorNoDevice == 100 && cudaErrorInvalidDevice == 101 &&
                  cudaErrorNotReady == 600 && cudaErrorIllegalAddress == 700 &&
                  cudaErrorLaunchFailure == 719 && cudaErrorSystemNotReady == 802 &&
                  cudaErrorSystemDriverMismatch == 803,
              "the numbers of errors are NVIDIA's");
static_assert(cudaMemcpyDefault == 4 && cudaDevAttrMaxPitch == 11 &&
                  cudaDevAttrMultiProcessorCount == 16 && cudaDevAttrComputeCapabilityMajor == 75 &&
                  cudaDevAttrComputeCapabilityMinor == 76 && cudaStreamNonBlocking == 1 &&
                  cudaEventBlockingSync == 1 && cudaEventDisableTiming == 2 &&
                  cudaHostAllocPortable == 1,
              "the numbers of options are NVIDIA's");

using fake::api_call;

static std::recursive_mutex lock;
static thread_local cudaError_t last_error;
static thread_local int current_device;
static int driver_version = 13000;
/* More than what tp-run expects CUDA and NCCL to take, which is nothing here. */
static const int64_t MEMORY_BYTES = (int64_t)16 << 30;
static int64_t memory_bytes = MEMORY_BYTES;
static pid_t begun_by; /* the process; 0: none */

static uint64_t number_from(const char *variable, uint64_t otherwise)
{
    const char *text = getenv(variable);

    return text ? strtoull(text, nullptr, 0) : otherwise;
}

static void begin()
{
    fake::seed(number_from("FAKECUDA_SEED", 0));
    fake::gpus_begin();
    driver_version = (int)number_from("FAKECUDA_DRIVER", 13000);
    memory_bytes = (int64_t)number_from("FAKECUDA_MEMORY", MEMORY_BYTES);
    fake::memory_begin();
}

fake::api_call::api_call() : guard(lock)
{
    if (begun_by == getpid())
        return;
    if (begun_by)
        report(nullptr, "a call of CUDA in a process that was forked after CUDA had begun in its "
                        "parent; NVIDIA's driver refuses it");
    begun_by = getpid();
    begin();
}

cudaError_t fake::api_call::fail(cudaError_t error) const
{
    return last_error = error;
}

cudaError_t fake::api_call::done() const
{
    return device_failure == cudaSuccess ? cudaSuccess : fail(device_failure);
}

void fake::api_record(const char *name)
{
    append_line("FAKECUDA_HOST_CALLS", "%d %s %lld %lld %llu\n", (int)getpid(), name,
                (long long)memory_used(DEVICE_MEMORY), (long long)memory_used(PINNED_MEMORY),
                (unsigned long long)n_operations());
}

void fake::api_wait_by_chance()
{
    api_call call;

    if (random_below(2))
        run_all();
}

void fake::api_check_stream(const char *call, cudaStream_t s)
{
    if (!stream_exists(s))
        report(nullptr, "%s: the stream does not exist", call);
}

size_t fake::api_memory_total()
{
    return (size_t)memory_bytes;
}

size_t fake::api_memory_left()
{
    return (size_t)(memory_bytes - memory_used(DEVICE_MEMORY));
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
        { cudaErrorDevicesUnavailable, "CUDA-capable device(s) is/are busy or unavailable" },
        { cudaErrorNoDevice, "no CUDA-capable device is detected" },
        { cudaErrorInvalidDevice, "invalid device ordinal" },
        { cudaErrorNotReady, "device not ready" },
        { cudaErrorIllegalAddress, "an illegal memory access was encountered" },
        { cudaErrorLaunchFailure, "unspecified launch failure" },
        { cudaErrorSystemNotReady, "system not yet initialized" },
        { cudaErrorSystemDriverMismatch,
          "system has unsupported display driver / cuda driver combination" },
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
    if (fake::gpus_count() == 0)
        return call.fail(cudaErrorNoDevice);
    if (getenv("FAKECUDA_NO_USE"))
        return call.fail((cudaError_t)number_from("FAKECUDA_NO_USE", 0));
    *count = fake::gpus_count();
    return call.done();
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int bytes, int device)
{
    api_call call;

    if (device < 0 || device >= fake::gpus_count() || bytes < 13)
        return call.fail(cudaErrorInvalidDevice);
    snprintf(id, (size_t)bytes, "0000:%02X:00.0", fake::gpus_number(device) + 1);
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

    if (device < 0 || device >= fake::gpus_count())
        return call.fail(cudaErrorInvalidDevice);
    if (const cudaError_t e = fake::gpus_busy(); e != cudaSuccess)
        return call.fail(e);
    current_device = device;
    fake::gpus_use(device);
    if (fake::device_failure != cudaSuccess && fake::random_below(2))
        return cudaSuccess; /* it "may" return the errors of earlier work */
    return call.done();
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device)
{
    api_call call;

    if (device < 0 || device >= fake::gpus_count())
        return call.fail(cudaErrorInvalidDevice);
    switch (attr) {
    case cudaDevAttrMaxPitch:
        *value = 0x7fffffff;
        return call.done();
    case cudaDevAttrMultiProcessorCount:
        *value = 2;
        return call.done();
    case cudaDevAttrComputeCapabilityMajor:
        *value = fake::gpus_capability() / 10;
        return call.done();
    case cudaDevAttrComputeCapabilityMinor:
        *value = fake::gpus_capability() % 10;
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

/* ---- for libraries on top of CUDA ---- */

void fake::api_enqueue_made(cudaStream_t s, const char *name, const operation_maker &make)
{
    api_call call;

    api_check_stream(name, s);
    enqueue_made(s, name, make);
}

void fake::api_go_on()
{
    api_call call;

    run_one();
}

cudaError_t fake::api_run(const char *name, cudaStream_t s, const std::function<cudaError_t()> &run)
{
    api_call call;
    cudaError_t e;

    api_check_stream(name, s);
    e = run();
    return e == cudaSuccess ? call.done() : call.fail(e);
}

void fake::api_enqueue(cudaStream_t s, const char *name, std::function<void()> run)
{
    api_call call;

    api_check_stream(name, s);
    enqueue(s, name, std::move(run));
}

/* ---- control ---- */

static void set_devices(int count, int version)
{
    api_call call;

    fake::gpus_set(count);
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
    fake::gpus_be,
    fake::gpus_capability,
    set_memory,
    set_failure,
    fake::n_queued,
    fake::mma_products,
    fake::wgmma_products,
    fake::epilogue_products,
    fake::epilogue_missing,
    fake::batched_calls,
    fake::batched_missing,
    fake::grouped_calls,
    fake::grouped_missing,
    fake::memory_pinned_peak,
    fake::n_operations,
    fake::handles_may_stay,
};
