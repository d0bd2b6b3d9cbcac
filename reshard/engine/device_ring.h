/*
 * reshard/engine/device_ring.h - copies tiles in the memory of a device: inside reshard/engine/.
 *
 * Tiles go through a ring of three slots, each with pinned host memory and device memory for a
 * batch of tiles. While threads read the runs of one batch into pinned memory and write those of
 * another, the device works on the third: a transfer to the device, one kernel that gathers, splits
 * and casts from a table of copies, one that sums (CRC32C and digests) from a table of parts, a
 * transfer back. If the target is memory of the device, the first kernel writes right there, and
 * only checksums come back. A tile that does not fit into a slot is copied as without a device.
 */
#ifndef RESHARD_ENGINE_DEVICE_RING_H
#define RESHARD_ENGINE_DEVICE_RING_H

#include "reshard/engine/transfer_run.h"

struct device_ring;

/* Allocate the ring of a plan: p->ring_bytes of pinned host memory, and as much of the device. */
tp_status device_ring_open(struct device_ring **out, const struct transfer_plan *p,
                           struct tp_err *err);
void device_ring_close(struct device_ring *d); /* NULL does nothing */

/* Copy tiles first .. first + n - 1. On return all are written. */
tp_status device_ring_move(struct device_ring *d, struct transfer_run *r, int64_t first, int64_t n,
                           struct tp_err *err);

#endif
