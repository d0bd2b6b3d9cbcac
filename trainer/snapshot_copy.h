/*
 * trainer/snapshot_copy.h - copies what a rank saves from its parameters and its optimizer's state
 * to the host.
 */
#ifndef TRAINER_SNAPSHOT_COPY_H
#define TRAINER_SNAPSHOT_COPY_H

#include "device/device.h"
#include "kernels/ops.h"
#include "trainer/data_parallel/params.h"
#include "trainer/snapshot_shard.h"

/* Queue the copies of the shard's boxes. copies: pinned memory, of the length and in the order of
 * snapshot_shard_plan. */
void snapshot_copy(struct device_queue *q, const struct kernel_ops *ops,
                   const struct snapshot_shard *s, const struct params *p, char *copies);

#endif
