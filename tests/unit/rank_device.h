/*
 * tests/unit/rank_device.h - a rank's CPU device with one queue, for tests of collectives.
 */
#ifndef TESTS_UNIT_RANK_DEVICE_H
#define TESTS_UNIT_RANK_DEVICE_H

#include "comm/collective.h"
#include "comm/control.h"
#include "comm/world.h"
#include "device/cpu/cpu.h"

struct rank_device {
    struct comm_world *ranks;
    struct comm_control *control;
    struct comm *all; /* every rank */
    struct device *device;
    struct device_queue *queue; /* runs each operation at once */
    struct device_event *event;
};

/* Collective. Close it with rank_device_close, also after a failure. */
static inline tp_status rank_device_open(struct rank_device *d, struct comm_world *ranks,
                                         struct tp_err *err)
{
    const struct cpu_options options = { .threads = 1, .no_comm_thread = !comm_has_threads(ranks) };
    tp_status st;

    *d = (struct rank_device){ .ranks = ranks, .control = comm_control(ranks) };
    TP_TRY(cpu_device_open(&d->device, &options, err));
    TP_TRY(device_queue_open(d->device, &d->queue, DEVICE_QUEUE_COMPUTE, err));
    TP_TRY(device_event_open(d->device, &d->event, err));
    TP_TRY(comm_use_device(&d->all, ranks, d->device, NULL, err));
done:
    return st;
}

/* Wait for all operations on q. Returns the device's failure. */
static inline tp_status rank_device_sync(struct rank_device *d, struct device_queue *q,
                                         struct tp_err *err)
{
    device_record(q, d->event);
    return device_event_sync(d->event, err);
}

static inline void rank_device_close(struct rank_device *d)
{
    device_queue_close(d->queue);
    device_event_close(d->event);
    device_close(d->device);
    *d = (struct rank_device){ .ranks = d->ranks };
}

#endif
