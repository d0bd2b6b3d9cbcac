/*
 * device/null/null.h - a device that does nothing: code that drives a device can run on it without
 * data, to count what it would queue and send. Device memory is address space without access.
 */
#ifndef DEVICE_NULL_NULL_H
#define DEVICE_NULL_NULL_H

#include "device/device.h"

tp_status null_device_open(struct device **out, struct tp_err *err);

#endif
