/*
 * comm/world.h - the ranks of a job, and this process among them.
 *
 * Ranks exchange two kinds of data. Control messages (comm/control.h) are in host memory and
 * block: statuses, texts, small sums. Collectives (comm/collective.h) are in device memory and
 * ordered on queues of a device: activations, gradients, weights. The two never share a
 * communicator, so control messages may be sent while collectives are queued.
 */
#ifndef COMM_WORLD_H
#define COMM_WORLD_H

#include <stdbool.h>
#include <stdint.h>

#include "comm/comm.h"
#include "comm/env.h"
#include "core/err.h"
#include "core/heartbeat.h"
#include "device/device.h"

struct comm_control;

/* Join the ranks that env describes. Call once. local_bytes: the most memory that comm_alloc will
 * return on this rank (the launcher has reserved 64 GiB of address space, or less under ulimit -v).
 * TP_E_NOMEM: there is less. TP_E_COMM: MPI fails, or its number of ranks differs from env's. */
tp_status comm_open(struct comm_world **out, const struct comm_env *env, int64_t local_bytes,
                    struct tp_err *err);

/* Leave the job and free the world, its communicators and the memory of comm_alloc. Collective.
 * After an error, print its message and then pass its status as `abort`: this ends the other ranks
 * instead of waiting for them (under MPI it does not return), unless all have agreed on the error
 * by control_agree. TP_E_STOPPED and TP_E_NO count as success. NULL: does nothing. */
void comm_close(struct comm_world *w, tp_status abort);

/* Whether all ranks know of the last failure, by control_agree or comm_alloc. */
bool comm_has_agreed(const struct comm_world *w);

/* Ranks on this rank's host, for the default number of threads. */
int comm_local_size(const struct comm_world *w);

/* This rank's number among them, from 0. */
int comm_local_rank(const struct comm_world *w);

/* Whether collectives may run in the threads of queues. They may not if MPI moves the data and does
 * not support threads. */
bool comm_has_threads(const struct comm_world *w);

/* Control messages between all ranks. */
struct comm_control *comm_control(struct comm_world *w);

/* From now on the heartbeat h records when this rank waits for other ranks: in a call, or for a
 * queue that communicates. h is borrowed until comm_close; NULL: none. */
void comm_watch(struct comm_world *w, struct heartbeat *h);

struct comm_transport;

/* Collectives work on the memory and the queues of this device from now on: *out is the
 * communicator of all ranks. t moves the data; NULL: for a device whose memory host code can access
 * (the CPU). Collective; call once, and close the device before the world. */
tp_status comm_use_device(struct comm **out, struct comm_world *w, struct device *d,
                          const struct comm_transport *t, struct tp_err *err);

/* Allocate device memory that collectives of any communicator reach without copies: zeroed, aligned
 * as memory of device_alloc is. Collective, with the same n_bytes on every rank. Freed by
 * comm_close. */
tp_status comm_alloc(void **out, struct comm_world *w, int64_t n_bytes, struct tp_err *err);

/* Whether the device's transport makes this promise. */
bool comm_promises(const struct comm_world *w, enum comm_promise promise);

/* Seconds so far. waited: this rank waited inside calls and for queues. hidden: a queue's thread
 * worked on collectives while the main thread did not wait for it. */
struct comm_times {
    double waited, hidden;
};
struct comm_times comm_times(const struct comm_world *w);

#endif
