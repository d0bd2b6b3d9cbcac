/*
 * tests/unit/kernels_support.h - what the tests of kernels share: a CPU device to run them on,
 * arrays, and comparisons.
 */
#ifndef TESTS_UNIT_KERNELS_SUPPORT_H
#define TESTS_UNIT_KERNELS_SUPPORT_H

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "device/cpu/cpu.h"
#include "kernels/cpu/cpu.h"
#include "layout/dtype.h"
#include "tests/unit/random.h"

/* The queue of this test's kernels. It runs each kernel at once. */
static struct device_queue *kernels_queue;

/* From now on kernels use this many threads. */
static inline __attribute__((unused)) void use_threads(int n)
{
    const struct cpu_options options = { .threads = n };
    struct device *device;
    struct tp_err err;

    if (kernels_queue && kernels_queue->device->threads == n)
        return;
    if (kernels_queue) {
        device = kernels_queue->device;
        device_queue_close(kernels_queue);
        device_close(device);
    }
    cr_assert_eq(cpu_device_open(&device, &options, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(device_queue_open(device, &kernels_queue, DEVICE_QUEUE_COMPUTE, &err), TP_OK);
}

static inline __attribute__((unused)) struct device_queue *kernels_on(void)
{
    if (!kernels_queue)
        use_threads(1);
    return kernels_queue;
}

/* Run an operation of kernels/ops.h with the argument (struct tag){ ... }. */
#define RUN(op, tag, ...) kernels_cpu.op(kernels_on(), &(struct tag){ __VA_ARGS__ })

/* The failure of the kernels that were run. Later kernels run on a new device. */
static inline __attribute__((unused)) struct tp_err take_failure(void)
{
    struct device *device = kernels_on()->device;
    struct device_event *event;
    struct tp_err err = { 0 };
    int threads = device->threads;

    cr_assert_eq(device_event_open(device, &event, &err), TP_OK);
    device_record(kernels_queue, event);
    device_event_sync(event, &err);
    device_event_close(event);
    device_queue_close(kernels_queue);
    device_close(device);
    kernels_queue = NULL;
    use_threads(threads);
    return err;
}

static inline __attribute__((unused)) float *random_floats(struct rng *r, int64_t n, double size)
{
    float *x = malloc((size_t)(n + 1) * sizeof *x);

    cr_assert(x);
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(rng_real(r) * size);
    return x;
}

static inline __attribute__((unused)) float *filled_floats(int64_t n, float value)
{
    float *x = malloc((size_t)(n + 1) * sizeof *x);

    cr_assert(x);
    for (int64_t i = 0; i < n; i++)
        x[i] = value;
    return x;
}

/* A copy of x in `type`. x itself gets the rounded values, so that a reference in double starts
 * from the same numbers. */
static inline __attribute__((unused)) void *stored_as(enum dtype type, float *x, int64_t n)
{
    void *y = malloc((size_t)(n + 1) * sizeof *x);

    cr_assert(y);
    cast(y, type, x, DTYPE_F32, n);
    cast(x, DTYPE_F32, y, type, n);
    return y;
}

/* A copy of n elements of `type` as floats. */
static inline __attribute__((unused)) float *as_floats(enum dtype type, const void *y, int64_t n)
{
    float *x = malloc((size_t)(n + 1) * sizeof *x);

    cr_assert(x);
    cast(x, DTYPE_F32, y, type, n);
    return x;
}

/* Relative rounding step of a type. */
static inline __attribute__((unused)) double epsilon(enum dtype type)
{
    return type == DTYPE_F32 ? 0x1p-23 : 0x1p-8;
}

#define assert_near(got, want, tolerance, what)                                          \
    cr_assert(fabs((double)(got) - (double)(want)) <= (tolerance),                       \
              "%s: got %.9g, want %.9g, off by %.3g, allowed %.3g", what, (double)(got), \
              (double)(want), fabs((double)(got) - (double)(want)), (double)(tolerance))

#endif
