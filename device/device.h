/*
 * device/device.h - a processor with its own memory: memory, queues of work, events.
 *
 * Work for a device goes into queues (CUDA: streams). Operations of one queue run in the order in
 * which they were queued. Operations of different queues run in any order unless an event orders
 * them. Queuing an operation returns at once; the operation may run later. Host code that needs a
 * result records an event after the operation and calls device_event_sync, the only call that
 * waits.
 *
 * There are two kinds of memory. Device memory belongs to queued operations: host code computes
 * with its addresses and never reads or writes it, but for device->host_memory. Pinned host memory
 * can be used by both; after host code has queued an operation on it, host code does not use it
 * until it has synchronised with an event after that operation.
 *
 * Queued operations return no status. The device keeps the first failure, drops all work that is
 * queued after it, and returns the failure from every device_event_sync.
 *
 * One thread at a time uses a device. device_event_done may be called by any thread, and with
 * pins_in_threads device_alloc_pinned, too.
 */
#ifndef DEVICE_DEVICE_H
#define DEVICE_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"

struct device_ops;
struct device_times;
struct device_graph;

struct device {
    const struct device_ops *ops;
    int threads; /* host threads that one operation may use; 0: the device does not use the host */
    bool host_memory; /* device memory is plain host memory, which host code may fill while nothing
                         that is queued uses it */
    bool pins_in_threads;   /* any thread may allocate pinned memory while another uses the device:
                               it takes long */
    unsigned without_units; /* the CPU's units (kernels/cpu/unit.h) that no operation may use: tests
                               set it to run the kernels of other processors */
};

enum device_queue_kind {
    DEVICE_QUEUE_COMPUTE,
    DEVICE_QUEUE_COMM,     /* for communication that runs during computation */
    DEVICE_QUEUE_EXCHANGE, /* for messages that the next computation needs: as COMM, but without a
                              thread of its own, which would only take time from computation */
    DEVICE_QUEUE_COPY,     /* for copies that run during computation */
};

struct device_queue {
    struct device *device;
    enum device_queue_kind kind;
    bool has_thread; /* the queue has its own thread, which runs its operations */
};

struct device_event {
    struct device *device;
};

/* An operation that is a host function and works on device memory. args is the copy that
 * device_submit made. The device keeps a failure. */
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

/* What a device implements. Users of a device call the functions below instead. */
struct device_ops {
    tp_status (*alloc)(struct device *d, void **out, int64_t n_bytes, struct tp_err *err);
    tp_status (*alloc_pinned)(struct device *d, void **out, int64_t n_bytes, struct tp_err *err);
    void (*free)(struct device *d, void *p); /* of either kind; NULL does nothing */
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

    /* NULL, all four: the device records no graphs */
    void (*graph_begin)(struct device_queue *q);
    struct device_graph *(*graph_end)(struct device_queue *q);
    void (*graph_launch)(struct device_queue *q, struct device_graph *g);
    void (*graph_close)(struct device *d, struct device_graph *g);

    void (*fail)(struct device *d, const struct tp_err *err);
    void (*watch)(struct device *d, void (*fn)(void *ctx, bool waits), void *ctx);
    void (*times)(const struct device *d, struct device_times *out);
};

/* ---- memory ---- */

/* n_bytes of zeroed memory, aligned to 64 bytes at least. TP_E_NOMEM; TP_E_GPU_FULL: that of a GPU
 * does not suffice. */
tp_status device_alloc(struct device *d, void **out, int64_t n_bytes, struct tp_err *err);
tp_status device_alloc_pinned(struct device *d, void **out, int64_t n_bytes, struct tp_err *err);

/* Free either kind of memory, which no queued operation may still use. NULL does nothing. */
void device_free(struct device *d, void *p);

/* Let the device use memory that it has not allocated as device memory (a transport's, which other
 * ranks also use). p is aligned to 4096 bytes. Its owner frees it after the device is closed. */
tp_status device_adopt(struct device *d, void *p, int64_t n_bytes, struct tp_err *err);

/* Close the device and free its memory; its queues and events must be closed before. NULL does
 * nothing. */
void device_close(struct device *d);

/* ---- queues ---- */

tp_status device_queue_open(struct device *d, struct device_queue **out,
                            enum device_queue_kind kind, struct tp_err *err);

/* Finish the queue's operations, unless the device has failed, and free it. NULL does nothing. */
void device_queue_close(struct device_queue *q);

/* Queue a function; its arguments are copied. Only a device whose memory host code can access has
 * this (the CPU); its kernels and collectives use it. */
void device_submit(struct device_queue *q, const struct device_operation *o);

/* For a queued function while it runs: n_bytes of memory with any content. No other operation of
 * the queue uses it at the same time; the next operation gets the same memory. NULL: out of
 * memory. */
void *device_scratch(struct device_queue *q, int64_t n_bytes);

/* Copy between any kinds of memory; host memory is pinned. */
void device_copy(struct device_queue *q, void *dst, const void *src, int64_t n_bytes);
void device_copy_2d(struct device_queue *q, const struct device_copy *c);

/* Set every byte. */
void device_fill(struct device_queue *q, void *dst, int byte, int64_t n_bytes);

/* ---- events ---- */

tp_status device_event_open(struct device *d, struct device_event **out, struct tp_err *err);
void device_event_close(struct device_event *e); /* NULL does nothing */

/* Set the event to the point after everything that is queued so far. An event that was never
 * recorded counts as passed. */
void device_record(struct device_queue *q, struct device_event *e);

/* What is queued from now on runs after the point that the event is set to now. */
void device_wait(struct device_queue *q, struct device_event *e);

/* Wait until the event is passed. Returns the device's failure, if it has one. */
tp_status device_event_sync(struct device_event *e, struct tp_err *err);

/* Whether the event is passed. Does not wait. */
bool device_event_done(const struct device_event *e);

/* ---- graphs ---- */

/*
 * Some devices record what is queued, as a graph, and queue all of it again with one call. The
 * operations then have the addresses and numbers that they were recorded with, and read what is at
 * these addresses when they run.
 *
 * A recording begins on one queue, and what is queued there is recorded, not run. Another queue
 * takes part from when it waits for an event that was recorded in the recording; the first queue
 * must wait for its last operation before the end. In between, the thread does not allocate, free
 * or wait for the device, and no queue waits for an event that was recorded before.
 */

/* Whether the device records. */
bool device_has_graphs(const struct device *d);

void device_graph_begin(struct device_queue *q);

/* The end, on the queue of the beginning. NULL: the device has failed, and keeps the failure. */
struct device_graph *device_graph_end(struct device_queue *q);

/* Queue everything that was recorded: after what q has, and before what q gets next. NULL does
 * nothing. */
void device_graph_launch(struct device_queue *q, struct device_graph *g);

/* Free a graph that does not run any more. NULL does nothing. */
void device_graph_close(struct device *d, struct device_graph *g);

/* ---- the device's state ---- */

/* Keep a failure that happened outside of the device, unless there is an earlier one. */
void device_fail(struct device *d, const struct tp_err *err);

/* Call fn when this process begins and when it ends to wait for a queue that has a thread. NULL:
 * call nothing. */
void device_watch(struct device *d, void (*fn)(void *ctx, bool waits), void *ctx);

/* For queues with threads, seconds so far: the process waited for them; they worked. */
struct device_times {
    double waited, worked;
};
struct device_times device_times(const struct device *d);

#endif
