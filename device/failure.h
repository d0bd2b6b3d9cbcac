/*
 * device/failure.h - the first failure of a device, which it keeps. For implementations of
 * device/device.h, whose queues may fail in several threads.
 */
#ifndef DEVICE_FAILURE_H
#define DEVICE_FAILURE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "core/err.h"

struct device_failure {
    atomic_bool failed;
    pthread_mutex_t lock; /* for first */
    struct tp_err first;
};

/* f is zeroed. */
void device_failure_open(struct device_failure *f);
void device_failure_close(struct device_failure *f);

/* Keep *err, unless there is an earlier failure. */
void device_failure_keep(struct device_failure *f, const struct tp_err *err);

/* Whether there is a failure; cheap enough for every operation. */
static inline bool device_failure_has(struct device_failure *f)
{
    return atomic_load_explicit(&f->failed, memory_order_acquire);
}

/* The failure's status and *err, or TP_OK. */
tp_status device_failure_get(struct device_failure *f, struct tp_err *err);

#endif
