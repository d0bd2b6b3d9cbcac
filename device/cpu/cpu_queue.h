/*
 * device/cpu/cpu_queue.h - a queue of the CPU device: its thread, if it has one, and its scratch
 * memory. Only device/cpu/ includes this.
 *
 * Operations wait in a ring with one producer (the thread that uses the device) and one consumer.
 */
#ifndef DEVICE_CPU_CPU_QUEUE_H
#define DEVICE_CPU_CPU_QUEUE_H

#include "device/device.h"

typedef void (*cpu_run_fn)(struct device_queue *q, device_fn fn, const void *args);

struct cpu_worker;

struct cpu_queue {
    struct device_queue queue;
    struct cpu_worker *worker; /* NULL: the queue has no thread */
    void *scratch;
    int64_t scratch_bytes;
    struct cpu_queue *next; /* in the device's list */
};

/* Open a queue. If run is not NULL, the queue has a thread, which calls `run` for each operation.
 * Returns NULL when out of memory. */
struct cpu_queue *cpu_queue_open(struct device *d, enum device_queue_kind kind, cpu_run_fn run);

/* Let the thread finish the queued operations, and free the queue. False: after a failure the
 * thread is still in an operation, which may never end; then the thread and the queue are not
 * freed. */
bool cpu_queue_close(struct cpu_queue *q, bool failed);

/* device_scratch. */
void *cpu_queue_scratch(struct cpu_queue *q, int64_t n_bytes);

/* The rest is for queues with threads. Queue an operation; wait while the ring is full. The first
 * operation starts the thread. TP_E_NOMEM: the thread cannot be started. */
tp_status cpu_queue_submit(struct cpu_queue *q, device_fn fn, const void *args, int args_bytes,
                           struct tp_err *err);

/* The number of operations queued so far; whether that many are finished; wait until they are. */
uint64_t cpu_queue_number(const struct cpu_queue *q);
bool cpu_queue_has_finished(struct cpu_queue *q, uint64_t number);
void cpu_queue_finish(struct cpu_queue *q, uint64_t number);

/* Seconds that the thread has spent in operations; 0 without a thread. */
double cpu_queue_worked(struct cpu_queue *q);

#endif
