/*
 * reshard/engine/transfer.h - copy tensors from one endpoint to another, however each stores them.
 *
 * Resharding, export, import and resume are this copy with different endpoints.
 *
 * Plan:    each tensor is cut into tiles, ranges of its rows that fit the memory budget. The plan
 *          proves that the target's extents tile every tensor and that the source covers them, each
 *          element once.
 * Execute: for each tile, read the run of every source extent that overlaps it, gather and split in
 *          memory (kernels/copy.h), cast where the types differ, and write the run of every target
 *          extent. A run that is contiguous at both ends passes through one buffer without a copy.
 *          Threads take the tiles in order; processes under MPI share them.
 */
#ifndef RESHARD_ENGINE_TRANSFER_H
#define RESHARD_ENGINE_TRANSFER_H

#include <stdbool.h>
#include <stdint.h>

#include "comm/control.h"
#include "core/err.h"
#include "core/progress.h"
#include "reshard/engine/endpoint.h"

struct device;
struct kernel_ops;

enum { TRANSFER_DEVICE_MIN = 1 << 20 }; /* least memory of a device */

/* A device that gathers, splits, casts and sums. It changes no byte and no checksum. */
struct transfer_device {
    struct device *device;
    const struct kernel_ops *ops;
    int64_t memory_bytes; /* of the device, for all buffers */
    bool if_faster;       /* measure some rounds without it and some with it, and keep the faster */
    /* NULL: the device is open. Else another thread is opening it: `wait` returns when that has
     * ended, with its status, and `device` and `ops` are valid from then on. Any thread may call
     * it, any number of times. Meanwhile the host copies. A device that cannot be opened is a
     * failure of the transfer, or with if_faster a device that is not used. */
    tp_status (*wait)(void *ctx, struct tp_err *err);
    void *ctx;
};

struct transfer {
    int n_tensors;
    const struct reshard_tensor *tensors;
    const struct reshard_endpoint *from, *to;
    int64_t memory_bytes; /* for all buffers of this process together */
    int threads;          /* at least 1 */
    bool partial;         /* the target's extents may leave out parts of a tensor, as when one rank
                             resumes; else they must tile every tensor */
    const bool *mine; /* [extents of the target] true: this process writes the extent, and no other
                         does; NULL: processes share the tiles. The extents of all processes
                         together must tile every tensor, each process reads what its own extents
                         need, and the source's `check` covers what this process read */
    const bool *elsewhere; /* [n_tensors] true: the caller fills in this tensor of the target, so it
                              has no tiles; NULL: none */
    const struct transfer_device *device; /* NULL: the threads do everything */
    struct comm_control *control;         /* processes that share the work; NULL: this one alone */
    struct progress *progress;            /* counts bytes written; NULL: none */
    int64_t thread_bytes; /* 0: chosen by the plan. Else the buffer of one thread, as in an earlier
                             plan (transfer_plan_thread_bytes), so that the tiles are the same */
};

struct transfer_stats {
    int64_t bytes_read, bytes_written; /* by this process */
    int64_t bytes_wanted;              /* of the target's extents, in the source's types */
    int64_t tiles;
    int64_t buffer_bytes; /* of this process */
    int splits;           /* tensors of which a source extent goes to several target extents */
    int merges;           /* tensors of which a target extent comes from several source extents */
    int copies;           /* tensors that are neither; one that is both counts twice */
    int64_t device_bytes; /* written after a device copied them */
    double host_rate, device_rate; /* bytes per second without and with the device; 0: unknown */
};

/* What happens to one tensor. */
struct transfer_tensor_stats {
    int from, to;      /* extents of it in the source and in the target */
    bool split, merge; /* as in struct transfer_stats */
    bool cast;
};

struct transfer_plan;

/* Plan a transfer; what t points to must outlive the plan. Collective over t->control; all
 * processes use the smallest memory and the fewest threads that any of them has. TP_E_BUDGET:
 * memory_bytes does not hold a tile of one element; the message has the number. TP_E_CORRUPT: the
 * source does not cover what the target wants, or covers it twice; the message names tensor and
 * box. TP_E_INTERNAL: the target's extents overlap or leave gaps. */
tp_status transfer_plan_make(struct transfer_plan **out, const struct transfer *t,
                             struct tp_err *err);
void transfer_plan_free(struct transfer_plan *p);

/* What executing the plan will do. */
void transfer_plan_stats(const struct transfer_plan *p, struct transfer_stats *stats);

/* stats[i]: what happens to tensor i. Collective over the transfer's control. */
tp_status transfer_plan_tensors(const struct transfer_plan *p, struct transfer_tensor_stats *stats,
                                struct tp_err *err);

/* Tell a source that is not local now what the first tiles will read, so that it fetches that while
 * the target is created. Only before transfer_begin, and when no tiles will be skipped. */
void transfer_plan_announce(struct transfer_plan *p);

/* The buffer of one thread. With the same size, the same tensors are cut into the same tiles. */
int64_t transfer_plan_thread_bytes(const struct transfer_plan *p);

/* The digests of what was read and then cast, so far, as words; n = 0 when nothing is cast. Like
 * the running checksums of endpoints they belong into a journal. Borrowed. */
struct reshard_sums transfer_plan_cast_sums(struct transfer_plan *p);

/* Skip tiles 0 .. n - 1, which an earlier process completed; statistics and execution then cover
 * the others. Not for a transfer that several processes share. */
tp_status transfer_plan_skip(struct transfer_plan *p, int64_t n, struct tp_err *err);

/* Execute the plan, then `check` the source. Collective over the transfer's control; every process
 * gets the same status. Keep the target only when this returns TP_OK. */
tp_status transfer_execute(struct transfer_plan *p, struct transfer_stats *stats,
                           struct tp_err *err);

/* ---- the same, in rounds ----
 *
 *     TP_TRY(transfer_begin(&run, plan, err));
 *     while (!st && !transfer_is_done(run))
 *         st = transfer_round(run, 0.5, &tiles_done, err);
 *     st = transfer_end(run, st, &stats, err);
 *
 * Tiles are completed in order. Between two rounds none is in progress, so the endpoints' running
 * checksums cover exactly the tiles 0 .. tiles_done - 1, and a journal can record them.
 */

struct transfer_run;

/* Allocate the buffers. Collective. */
tp_status transfer_begin(struct transfer_run **out, struct transfer_plan *p, struct tp_err *err);
bool transfer_is_done(const struct transfer_run *run);

/* Execute some of the tiles that are left. The number per round adapts, so that a round takes about
 * `seconds`; 0: one tile for each thread; INFINITY: all that are left. */
tp_status transfer_round(struct transfer_run *run, double seconds, int64_t *tiles_done,
                         struct tp_err *err);

/* Agree on st with the other processes, check the source when it is TP_OK, and free the run.
 * Collective. */
tp_status transfer_end(struct transfer_run *run, tp_status st, struct transfer_stats *stats,
                       struct tp_err *err);

/* Free a run that was not executed to its end. run may be NULL. Not collective. */
void transfer_cancel(struct transfer_run *run);

/* ---- what an earlier process wrote ----
 *
 * Before the first round, for a target that has `suspects`.
 */

/* Read back the suspect runs of tiles first .. first + n - 1 by the target's `read`. */
tp_status transfer_read_back(struct transfer_run *run, int64_t first, int64_t n,
                             struct tp_err *err);

/* Copy those of tiles first .. first + n - 1 again that write a suspect run. All running sums, of
 * both endpoints and of casts, then count these tiles twice: the caller restores them. */
tp_status transfer_redo(struct transfer_run *run, int64_t first, int64_t n, struct tp_err *err);

/* ---- proof ---- */

/* For each tensor compare the digest of what was written with that of the source; for a tensor that
 * was cast, with that of the cast of what was read. *equal and *cast count the tensors of either
 * kind. Valid when both endpoints keep digests, the target is complete, and it is not partial.
 * TP_E_CORRUPT: what was written is not what was read, or not its cast; tensor and both digests are
 * named. */
tp_status transfer_compare_digests(const struct transfer_plan *p, int *equal, int *cast,
                                   struct tp_err *err);

#endif
