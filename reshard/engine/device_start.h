/*
 * reshard/engine/device_start.h - the start of a transfer's device, in a thread: inside
 * reshard/engine/. It waits until the device is open, and allocates the ring. To open a GPU and to
 * pin memory takes most of a second, in which other threads have copied a GB.
 */
#ifndef RESHARD_ENGINE_DEVICE_START_H
#define RESHARD_ENGINE_DEVICE_START_H

#include <stdbool.h>

#include "core/err.h"

struct device_ring;
struct device_start;
struct transfer_plan;

/* Of the plan's device; it has not begun. NULL: no memory. */
struct device_start *device_start_new(const struct transfer_plan *p);

/* End it, and free it, with a ring that nobody took. NULL does nothing. */
void device_start_free(struct device_start *s);

/* Begin, unless it has. */
void device_start_begin(struct device_start *s);
bool device_start_has_begun(const struct device_start *s);

/* Whether it has begun, and is not done. */
bool device_start_runs(struct device_start *s);

/* Wait until it is done, after beginning it where that is missing. *out: the ring, which belongs to
 * the caller from then on; NULL on failure. *is_open: whether the device is. */
tp_status device_start_end(struct device_start *s, struct device_ring **out, bool *is_open,
                           struct tp_err *err);

#endif
