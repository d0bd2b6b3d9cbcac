/*
 * comm/transport.h - what moves the data of collectives between devices. Only comm/ uses this.
 *
 * A transport is one table of functions. The CPU's (comm/cpu_transport.h) queues functions that
 * work on host memory. NCCL's (comm/cuda/nccl_transport.h) queues work on a GPU; it promises
 * nothing, because NCCL chooses the order of its sums.
 *
 * Before a transport is called, comm/collective.c has counted the call and refused wrong ranks.
 * Calls on a communicator of one rank do not reach the transport.
 */
#ifndef COMM_TRANSPORT_H
#define COMM_TRANSPORT_H

#include <stdbool.h>

#include "comm/comm.h"
#include "core/err.h"
#include "core/heartbeat.h"
#include "device/device.h"

/* More kinds of calls. An exchange is counted as a send and a receive. */
enum { COMM_WAIT = COMM_KINDS, COMM_EXCHANGE };
enum { COMM_ID_BYTES = 128 };

struct comm_call {
    int kind; /* enum comm_kind, or one of those above */
    void *out;
    const void *in;
    int64_t n;
    enum dtype type;
    enum comm_op op;
    int peer;                             /* the other rank of a message */
    int64_t row_bytes;                    /* of an all-to-all, where n is not used */
    const int32_t *send_rows, *recv_rows; /* as struct comm_rows has them, as are the next two */
    const int32_t *host_send, *host_recv;
    struct comm_request *request;
};

struct comm_transport {
    /* On rank 0: make what all ranks need for `open`. NULL: nothing. */
    tp_status (*make_id)(char id[COMM_ID_BYTES], struct tp_err *err);
    /* Fill all->impl; `all` is the communicator of all ranks. id is rank 0's. Collective. */
    tp_status (*open)(struct comm *all, const char id[COMM_ID_BYTES], struct tp_err *err);
    /* Fill out->impl, out->rank and out->size for the communicator of the ranks of c with this
     * color, ordered by key. *made: whether this rank is in such a communicator.
     * Collective. */
    tp_status (*split)(struct comm *out, bool *made, struct comm *c, int color, int key,
                       struct tp_err *err);
    void (*free)(struct comm *c); /* free c->impl */
    tp_status (*alloc)(struct comm_world *w, void **out, int64_t n_bytes, struct tp_err *err);
    /* q may be of another device that does nothing; then the call does nothing. */
    void (*queue)(struct comm *c, struct device_queue *q, const struct comm_call *call);
    /* The first one of a communicator for each neighbour is collective over its ranks. */
    tp_status (*request_open)(struct comm *c, struct comm_request *r, enum comm_neighbour to,
                              struct tp_err *err);
    void (*request_free)(struct comm_request *r);
    /* Collective, before the first exchange. NULL: nothing. */
    tp_status (*exchange_open)(struct comm *c, struct tp_err *err);
    unsigned promises; /* a bit for each enum comm_promise */
};

struct comm_request {
    void *impl; /* of the transport */
    struct comm_request *next;
};

struct comm {
    const struct comm_transport *transport;
    void *impl; /* of the transport */
    struct comm_world *world;
    int rank, size;
    struct comm_counts counts;
    struct comm_request *requests; /* freed with the communicator */
    struct comm *next;             /* in the world's list */
};

struct host_process;

struct comm_control {
    struct comm_world *world;
};

struct comm_world {
    struct host_process *process;
    struct comm_control control;
    struct device *device; /* NULL until comm_use_device */
    const struct comm_transport *transport;
    struct comm *comms;      /* all that exist, linked by next */
    struct heartbeat *watch; /* or NULL; borrowed */
    double waited;           /* seconds inside calls */
    double entered;          /* when the current call began */
};

/* Call these when this process's main thread begins or ends to wait for other ranks. They measure
 * the times in the log and update the heartbeat. */
void transport_wait_begin(struct comm_world *w);
void transport_wait_end(struct comm_world *w);

#endif
