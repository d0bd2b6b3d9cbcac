/*
 * comm/collective.h - collectives between ranks over device memory, ordered on a queue.
 *
 * A call is an operation of its queue (device/device.h): it returns at once, and a failure is kept
 * by the queue's device. A collective is queued by every rank of the communicator, in the same
 * order. One communicator is used on one queue at a time: to go on with it on another queue, order
 * the queues by an event. Buffers of comm_alloc move without extra copies; messages must lie there.
 *
 * Sums are taken in the type's own precision; of bf16 they are taken in f32 and rounded once.
 */
#ifndef COMM_COLLECTIVE_H
#define COMM_COLLECTIVE_H

#include <stdint.h>

#include "comm/comm.h"
#include "core/err.h"
#include "device/device.h"

int comm_rank(const struct comm *c);
int comm_size(const struct comm *c);

/* Ranks with the same color form a new communicator, ordered by key, then rank. Collective over c,
 * and done on return. A color < 0 gets none (*out = NULL). Freed by comm_free, or with the world.
 */
tp_status comm_split(struct comm **out, struct comm *c, int color, int key, struct tp_err *err);
void comm_free(struct comm *c); /* NULL: nothing */

/* In place: buf[i] = op over ranks of buf[i]. type: f32, bf16, f64 or i64. */
void comm_all_reduce(struct comm *c, struct device_queue *q, void *buf, int64_t n, enum dtype type,
                     enum comm_op op);

/* out[r * n + i] = rank r's in[i]. in may be out + rank * n. Any type: nothing is computed. */
void comm_all_gather(struct comm *c, struct device_queue *q, void *out, const void *in, int64_t n,
                     enum dtype type);

/* out[i] = the sum over ranks of in[rank * n + i]; in holds size * n elements. out may be
 * in + rank * n. Types as comm_all_reduce. */
void comm_reduce_scatter(struct comm *c, struct device_queue *q, void *out, const void *in,
                         int64_t n, enum dtype type);

/* A request for the messages that this rank sends on c, one at a time. Freed with c. TP_E_NOMEM. */
tp_status comm_request_open(struct comm_request **out, struct comm *c, struct tp_err *err);

/* Send to a rank. What is queued behind it does not wait for the receiver: buf stays as it is until
 * the queue has passed comm_wait for the request. Messages of a pair of ranks arrive in order, and
 * both sides know n and type. Any type. */
void comm_send(struct comm *c, struct device_queue *q, const void *buf, int64_t n, enum dtype type,
               int to, struct comm_request *r);
void comm_recv(struct comm *c, struct device_queue *q, void *buf, int64_t n, enum dtype type,
               int from);

/* What is queued from here on runs after the request's message has left its buffer. Nothing when it
 * has none. */
void comm_wait(struct comm *c, struct device_queue *q, struct comm_request *r);

/* What was queued on c since it was made. Borrowed. */
const struct comm_counts *comm_counts(const struct comm *c);

#endif
