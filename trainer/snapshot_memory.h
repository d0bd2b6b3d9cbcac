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
    void *pinned; /* the memory, after snapshot_memory_finish */
    bool has_begun, has_thread;
    pthread_t thread;
    tp_status st; /* of the allocation; read after joining the thread */
    struct tp_err err;
};

/* Begin in a thread, if the device can. Else snapshot_memory_finish does it all. */
void snapshot_memory_begin(struct snapshot_memory *m);

/* Wait for the thread, or allocate. TP_E_NOMEM. */
tp_status snapshot_memory_finish(struct snapshot_memory *m, struct tp_err *err);

/* End the thread, and free the memory. */
void snapshot_memory_close(struct snapshot_memory *m);

#endif
