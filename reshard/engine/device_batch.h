/*
 * reshard/engine/device_batch.h - a batch of tiles that a device copies: what is read and written,
 * and the tables of the device's kernels. Inside reshard/engine/.
 */
#ifndef RESHARD_ENGINE_DEVICE_BATCH_H
#define RESHARD_ENGINE_DEVICE_BATCH_H

#include "kernels/part_sums.h"
#include "reshard/engine/transfer_run.h"

/* A run of an extent, where it is in the batch's buffer, and where on the device: in its copy of
 * the buffer, or in the target's memory. */
struct device_batch_run {
    int64_t tile;
    int extent;
    struct box box;
    int64_t at, n_bytes;
    char *data;
};

/* Whose checksum the device computes. */
enum device_batch_sum_kind { DEVICE_BATCH_SOURCE, DEVICE_BATCH_TARGET, DEVICE_BATCH_CAST };
struct device_batch_sum {
    enum device_batch_sum_kind kind;
    int owner; /* extent; of a cast: tensor */
    struct reshard_part part;
};

struct device_batch {
    int64_t buffer_bytes; /* room for runs that are read; as much for those that are written, unless
                             the target is memory of the device */
    int items;            /* room of each table */
    char *read, *written; /* where they are on the device */
    struct copy_item *copies; /* tables, as the device will read them: pinned memory */
    struct part_sums_item *parts;
    struct device_batch_run *reads, *writes;
    struct device_batch_sum *sums;
    int n_reads, n_writes, n_copies, n_sums;
    int64_t read_bytes, written_bytes;
    int64_t copy_warps; /* as copy_items_place returned */
    struct part_sums_work sum_work;
    int64_t host_tile; /* does not fit into any batch, so the host copies it; -1: none */
};

/* Bytes of pinned memory that one more item of the tables takes. */
enum {
    DEVICE_BATCH_PINNED =
        sizeof(struct copy_item) + sizeof(struct part_sums_item) + sizeof(struct part_sums_result),
};

/* Empty the batch, and fill it with tiles from *next on, before `end`; *next moves on. w: for the
 * tile's arrays. */
void device_batch_fill(struct device_batch *b, const struct transfer_plan *p,
                       struct transfer_worker *w, int64_t *next, int64_t end);

/* Give the checksums that the device computed to the endpoints and the plan. */
void device_batch_add_sums(const struct device_batch *b, struct transfer_plan *p,
                           const struct part_sums_result *results);

#endif
