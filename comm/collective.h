/*
 * comm/collective.h - collectives between ranks over device memory, ordered on a queue.
 *
 * A call is an operation of its queue (device/device.h): it returns at once, and
 * the queue's device keeps a failure. All ranks of the communicator queue the same collectives in
 * the same order. A communicator is used on one queue at a time: before it is used on another
 * queue, order the queues by an event. Data in buffers of comm_alloc are sent without extra copies,
 * and comm_send accepts only such buffers.
 *
 * Sums have the type's own precision, except that bf16 is summed in f32 and rounded once. NCCL may
 * round bf16 wherever it adds.
 */
#ifndef COMM_COLLECTIVE_H
#define COMM_COLLECTIVE_H

#include <stdint.h>

#include "comm/comm.h"
#include "core/err.h"
#include "device/device.h"

/* This rank in the communicator, 0 .. size - 1, and its number of ranks. */
int comm_rank(const struct comm *c);
int comm_size(const struct comm *c);

/* Ranks with the same color form a new communicator, ordered by key, then rank. Collective over c,
 * and complete on return. A rank with a color < 0 gets none (*out = NULL). Freed by comm_free, or
 * with the world. */
tp_status comm_split(struct comm **out, struct comm *c, int color, int key, struct tp_err *err);
void comm_free(struct comm *c); /* NULL: does nothing */

/* In place: buf[i] = op over ranks of buf[i]. type: f32, bf16, f64 or i64. */
void comm_all_reduce(struct comm *c, struct device_queue *q, void *buf, int64_t n, enum dtype type,
                     enum comm_op op);

/* out[r * n + i] = rank r's in[i]. in may be out + rank * n. Any type, because nothing is
 * computed. */
void comm_all_gather(struct comm *c, struct device_queue *q, void *out, const void *in, int64_t n,
                     enum dtype type);

/* out[i] = the sum over ranks of in[rank * n + i]; in holds size * n elements. out may be
 * in + rank * n. Types as for comm_all_reduce. */
void comm_reduce_scatter(struct comm *c, struct device_queue *q, void *out, const void *in,
                         int64_t n, enum dtype type);

/* The rows that a rank sends to each rank, and those that it receives: device memory, which is read
 * when the call runs. Both ranks of a pair must have the same number. NCCL takes numbers from the
 * host only: it reads host_send and host_recv, the same numbers in host memory, before the call
 * returns. Between CPUs these may be NULL. */
struct comm_rows {
    int64_t row_bytes;
    const int32_t *send; /* [size + 1]: rows send[r] to send[r + 1] - 1 of `in` go to rank r */
    const int32_t *recv; /* [size + 1]: what rank r sends gets to rows recv[r] to recv[r + 1] - 1 */
    int64_t counted;     /* how many rows the counts of this call have */
    const int32_t *host_send, *host_recv;
};

/* Each rank sends rows to each rank. `in` and out do not overlap, and `in` is memory of comm_alloc.
 * TP_E_INTERNAL: a pair of ranks does not agree (on one host; MPI and NCCL do not tell), or NCCL
 * has no numbers. */
void comm_all_to_all(struct comm *c, struct device_queue *q, void *out, const void *in,
                     const struct comm_rows *rows);

/* A request for the messages that this rank sends to a neighbour in c, one at a time. The first one
 * for a neighbour is collective over c, whose ranks connect then. Freed with c. TP_E_NOMEM;
 * TP_E_IO, TP_E_COMM: the ranks cannot be connected. */
tp_status comm_request_open(struct comm_request **out, struct comm *c, enum comm_neighbour to,
                            struct tp_err *err);

/* Send to a rank. Later work on the queue does not wait for the receiver, so buf must not change
 * until the queue has passed comm_wait for the request. Messages of a pair of ranks arrive in
 * order, and both sides know n and type. Any type. */
void comm_send(struct comm *c, struct device_queue *q, const void *buf, int64_t n, enum dtype type,
               int to, struct comm_request *r);
void comm_recv(struct comm *c, struct device_queue *q, void *buf, int64_t n, enum dtype type,
               int from);

/* Work that is queued after this call runs after the request's message has left its buffer. Does
 * nothing if the request has no message. */
void comm_wait(struct comm *c, struct device_queue *q, struct comm_request *r);

/* Connect the ranks of c for comm_exchange. Collective. TP_E_IO, TP_E_COMM. */
tp_status comm_exchange_open(struct comm *c, struct tp_err *err);

/* Send n elements to the next rank, and receive as many from the previous one, in a ring: out of
 * this rank is `in` of the previous rank. As with other collectives, later work on the queue runs
 * after both. c has several ranks; `in` is memory of comm_alloc and does not overlap out. Any type.
 * Counted as a COMM_SEND and a COMM_RECV. */
void comm_exchange(struct comm *c, struct device_queue *q, void *out, const void *in, int64_t n,
                   enum dtype type);

/* Calls and bytes that were queued on c so far. Borrowed. */
const struct comm_counts *comm_counts(const struct comm *c);

#endif
