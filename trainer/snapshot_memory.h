/*
 * trainer/snapshot_memory.h - pinned memory for the copies of a state, allocated in a thread: it
 * takes 0.3 s for each GiB, in which the state can be restored.
 */
#ifndef TRAINER_SNAPSHOT_MEMORY_H
#define TRAINER_SNAPSHOT_MEMORY_H

#include <pthread.h>

#include "device/device.h"

/* Zeroed: nothing has begun. */
struct snapshot_memory {
    struct device *device; /* borrowed */
    int64_t n_bytes;
    void *pinned;
    bool has_begun, has_thread;
    pthread_t thread;
    tp_status st; /* of the allocation; read after joining the thread */
    struct tp_err err;
};

/* Begin in a thread, if the device can. Else snapshot_memory_get does it all. */
void snapshot_memory_begin(struct snapshot_memory *m);

/* *out: the memory, which stays m's. TP_E_NOMEM. */
tp_status snapshot_memory_get(struct snapshot_memory *m, void **out, struct tp_err *err);

/* End the thread, and free the memory. */
void snapshot_memory_close(struct snapshot_memory *m);

#endif
