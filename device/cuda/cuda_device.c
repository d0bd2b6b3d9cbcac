/* device/cuda/cuda_device.c - see device/cuda/cuda_device.h. */
#include "device/cuda/cuda_device.h"

#include <cuda_runtime_api.h>

#include "device/cuda/cuda_error.h"

struct cuda_device *cuda_device_of(const struct device *d)
{
    return (struct cuda_device *)(uintptr_t)d; /* its first member */
}

void cuda_device_fail(struct device *d, const struct tp_err *err)
{
    device_failure_keep(&cuda_device_of(d)->failure, err);
}

void cuda_device_check(struct device *d, const char *what, int error)
{
    struct tp_err err;

    if (error == cudaSuccess)
        return;
    cuda_error_fail(&err, cuda_device_of(d)->ordinal, what, error);
    cuda_device_fail(d, &err);
}

/* After a failure of a GPU all calls that use it return that failure. */
bool cuda_device_probe(struct device *d, const char *what)
{
    size_t available, total;

    cuda_device_check(d, what, cudaMemGetInfo(&available, &total));
    return device_failure_has(&cuda_device_of(d)->failure);
}

tp_status cuda_device_failure(struct device *d, struct tp_err *err)
{
    return device_failure_get(&cuda_device_of(d)->failure, err);
}

/* Any thread may use the device, and CUDA keeps a current GPU for each thread. */
bool cuda_device_begin(struct device *d)
{
    struct cuda_device *c = cuda_device_of(d);

    if (device_failure_has(&c->failure))
        return false;
    cuda_device_check(d, "work on the GPU", cudaSetDevice(c->ordinal));
    return !device_failure_has(&c->failure);
}
