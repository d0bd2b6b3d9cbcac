/*
 * comm/cuda/nccl_watch.h - the NCCL communicators of a process, and the thread that watches them.
 * Only comm/cuda/ uses this.
 *
 * When the network or another rank fails inside a collective, its kernel never ends, and the host
 * waits for it. Only ncclCommGetAsyncError says so. The thread asks all communicators a few times a
 * second. After an error the device keeps the sentence for people, and the thread aborts the
 * communicators: their kernels end, so the host's wait returns, with that sentence. It does the
 * same when the device has failed for another reason, because freeing memory of a GPU waits for
 * kernels too.
 *
 * NCCL allows one thread at a time to use a communicator. That thread is between nccl_watch_begin
 * and nccl_watch_end. While it waits inside of a call of NCCL (connecting ranks), nothing is
 * watched; NCCL returns most failures of connections from the call.
 */
#ifndef COMM_CUDA_NCCL_WATCH_H
#define COMM_CUDA_NCCL_WATCH_H

#include <nccl.h>
#include <stdbool.h>

#include "core/err.h"
#include "device/device.h"

struct nccl_watch;

/* Start the thread, for communicators on the CUDA device d, which is closed after the watch. The
 * watch has one user, the caller. TP_E_NOMEM. */
tp_status nccl_watch_open(struct nccl_watch **out, struct device *d, struct tp_err *err);

/* Add a user to w, which is in use (nccl_watch_begin). Returns w. */
struct nccl_watch *nccl_watch_share(struct nccl_watch *w);

/* Each user calls this once; NULL does nothing. The last one aborts the communicators that are
 * left, and ends the thread. CUDA graphs that contain calls of the communicators are closed before:
 * an abort waits for that. */
void nccl_watch_close(struct nccl_watch *w);

/* Let the calling thread use communicators, until nccl_watch_end. False: they are aborted, and the
 * device keeps the reason; then do not call nccl_watch_end. */
bool nccl_watch_begin(struct nccl_watch *w);
void nccl_watch_end(struct nccl_watch *w);

/* From now on the communicator is w's, which is in use (nccl_watch_begin). TP_E_NOMEM: it is
 * aborted. */
tp_status nccl_watch_add(struct nccl_watch *w, ncclComm_t comm, struct tp_err *err);

/* Destroy a communicator of w on which nothing is queued any more, unless it is aborted already.
 * NULL does nothing. After a failure of the device call nccl_watch_close only. */
void nccl_watch_destroy(struct nccl_watch *w, ncclComm_t comm);

#endif
