/*
 * cli/train/train_device.h - the device that tp-train computes on. Only train_device.c knows which
 * one; tests replace it.
 */
#ifndef CLI_TRAIN_TRAIN_DEVICE_H
#define CLI_TRAIN_TRAIN_DEVICE_H

#include "trainer/trainer.h"

struct train_device_options {
    int threads;         /* threads that a kernel may use; at least 1 */
    bool no_comm_thread; /* communication must not have a thread */
};

/* Open the device; the caller closes out->device. TP_E_NOMEM. */
tp_status train_device_open(struct trainer_device *out, const struct train_device_options *o,
                            struct tp_err *err);

#endif
