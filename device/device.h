/*
 * device/device.h - a processor with memory of its own: memory, queues of work, events.
 *
 * Work for a device goes into queues (CUDA: streams). Operations of one queue run in the order in
 * which they were queued. Operations of different queues run in any order unless an event orders
 * them. Queuing an operation returns at once and says nothing about when it runs: host code that
 * needs a result records an event behind it and calls device_event_sync, the only call that waits.
 *
 * There are two kinds of memory. Device memory belongs to queued operations: host code computes
 * with its addresses and never reads or writes it. Pinned host memory can be used by both; host
 * code leaves it alone from the moment it queues an operation on it until it has synchronised with
 * an event behind that operation.
 *
 * Queued operations return no status. The device keeps the first failure, drops all work that is
 * queued after it, and returns the failure from every device_event_sync.
 *
 * One thread at a time uses a device. device_event_done may be called by any thread.
 */
#ifndef DEVICE_DEVICE_H
#define DEVICE_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"

struct device_ops;
struct device_times;

struct device {
    const struct device_ops *ops;
    int threads; /* of the host that one operation may use; 0: the device computes by itself */
};

enum device_queue_kind {
    DEVICE_QUEUE_COMPUTE,
    DEVICE_QUEUE_COMM, /* for communication that runs beside computing */
    DEVICE_QUEUE_COPY, /* for copies that run beside computing */
};

struct device_queue {
    struct device *device;
    enum device_queue_kind kind;
    bool has_thread; /* operations run in a thread of this queue's own */
};

struct device_event {
    struct device *device;
};

/* An operation as a function of the host that works on device memory. args is the copy that
 * device_submit made. A failure is kept by the device. */
typedef tp_status (*device_fn)(struct device_queue *q, const void *args, struct tp_err *err);

enum { DEVICE_ARGS_MAX = 512 };

enum device_flag {
    /* The function waits for other ranks: operations with this flag run in the order in which they
     * were queued, over all queues of the device. */
    DEVICE_COLLECTIVE = 1,
};

struct device_operation {
    device_fn fn;
    const void *args;
    int args_bytes; /* at most DEVICE_ARGS_MAX */
    int flags;      /* of enum device_flag */
};

/* rows rows of row_bytes bytes; a pitch is the distance in bytes from one row to the next. A
 * src_pitch of 0 repeats one row. Source and destination do not overlap, unless they are equal. */
struct device_copy {
    void *dst;
    const void *src;
    int64_t rows, row_bytes, dst_pitch, src_pitch;
};

/* What a device provides. Those who use a device call the functions below instead. */
struct device_ops {
    tp_status (*alloc)(struct device *d, void **out, int64_t n_bytes, struct tp_err *err);
    tp_status (*alloc_pinned)(struct device *d, void **out, int64_t n_bytes, struct tp_err *err);
    void (*free)(struct device *d, void *p); /* of either kind; NULL: nothing */
    tp_status (*adopt)(struct device *d, void *p, int64_t n_bytes, struct tp_err *err);
    void (*close)(struct device *d);

    tp_status (*queue_open)(struct device *d, struct device_queue **out,
                            enum device_queue_kind kind, struct tp_err *err);
    void (*queue_close)(struct device_queue *q);
    void (*submit)(struct device_queue *q, const struct device_operation *o);
    void *(*scratch)(struct device_queue *q, int64_t n_bytes);
    void (*copy)(struct device_queue *q, const struct device_copy *c);
    void (*fill)(struct device_queue *q, void *dst, int byte, int64_t n_bytes);

    tp_status (*event_open)(struct device *d, struct device_event **out, struct tp_err *err);
    void (*event_close)(struct device_event *e);
    void (*record)(struct device_queue *q, struct device_event *e);
    void (*wait)(struct device_queue *q, struct device_event *e);
    tp_status (*sync)(struct device_event *e, struct tp_err *err);
    bool (*done)(const struct device_event *e);

    void (*fail)(struct device *d, const struct tp_err *err);
    void (*watch)(struct device *d, void (*fn)(void *ctx, bool waits), void *ctx);
    void (*times)(const struct device *d, struct device_times *out);
};

/* ---- memory ---- */

/* n_bytes of zeroed memory, aligned to 64 bytes at least. TP_E_NOMEM. */
tp_status device_alloc(struct device *d, void **out, int64_t n_bytes, struct tp_err *err);
tp_status device_alloc_pinned(struct device *d, void **out, int64_t n_bytes, struct tp_err *err);

/* Free either kind of memory. No queued operation uses it any more. NULL: nothing. */
void device_free(struct device *d, void *p);

/* Make memory that somebody else allocated device memory (a transport's, which other ranks reach).
 * p is aligned to 4096 bytes. Its owner frees it, after the device is closed. */
tp_status device_adopt(struct device *d, void *p, int64_t n_bytes, struct tp_err *err);

/* Close the device and free its memory; its queues and events are closed before. NULL: nothing. */
void device_close(struct device *d);

/* ---- queues ---- */

tp_status device_queue_open(struct device *d, struct device_queue **out,
                            enum device_queue_kind kind, struct tp_err *err);

/* Finish the queue's operations, unless the device has failed, and free it. NULL: nothing. */
void device_queue_close(struct device_queue *q);

/* Queue a function; its arguments are copied. Only devices whose memory host code can work on have
 * this (the CPU): kernels and collectives for them are made of it. */
void device_submit(struct device_queue *q, const struct device_operation *o);

/* For a function that runs now: n_bytes of memory that no other operation of the queue uses
 * meanwhile, with any content. It is kept for the next one. NULL: there is no memory. */
void *device_scratch(struct device_queue *q, int64_t n_bytes);

/* Copy between any kinds of memory; host memory is pinned. */
void device_copy(struct device_queue *q, void *dst, const void *src, int64_t n_bytes);
void device_copy_2d(struct device_queue *q, const struct device_copy *c);

/* Set every byte. */
void device_fill(struct device_queue *q, void *dst, int byte, int64_t n_bytes);

/* ---- events ---- */

tp_status device_event_open(struct device *d, struct device_event **out, struct tp_err *err);
void device_event_close(struct device_event *e); /* NULL: nothing */

/* The event is now the point behind all that was queued so far. One that was never recorded is
 * passed already. */
void device_record(struct device_queue *q, struct device_event *e);

/* What is queued from here on runs after the point that the event is now. */
void device_wait(struct device_queue *q, struct device_event *e);

/* Wait here until the event is passed. The device's failure, if it has one. */
tp_status device_event_sync(struct device_event *e, struct tp_err *err);

/* Whether the event is passed. Does not wait. */
bool device_event_done(const struct device_event *e);

/* ---- the device's state ---- */

/* Keep a failure that happened outside of the device; an earlier one stays. */
void device_fail(struct device *d, const struct tp_err *err);

/* Call fn when this process begins and ends to wait for a queue that has a thread. NULL: nobody. */
void device_watch(struct device *d, void (*fn)(void *ctx, bool waits), void *ctx);

/* Seconds so far, of queues with threads: that the process waited for them; that they worked. */
struct device_times {
    double waited, worked;
};
struct device_times device_times(const struct device *d);

#endif
