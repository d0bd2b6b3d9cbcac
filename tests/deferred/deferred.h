/*
 * tests/deferred/deferred.h - a device for tests that runs queued work as late as it may, in a
 * random order. README.md has its rules.
 */
#ifndef TESTS_DEFERRED_DEFERRED_H
#define TESTS_DEFERRED_DEFERRED_H

#include "device/device.h"

struct deferred_options {
    int threads;   /* that a kernel may use; at least 1 */
    uint64_t seed; /* of the order */
};

/* TP_E_NOMEM. */
tp_status deferred_device_open(struct device **out, const struct deferred_options *o,
                               struct tp_err *err);

#endif
