/*
 * reshard/engine/transfer.h - the one engine that moves tensors: from boxes that lie somewhere to
 * boxes that shall lie somewhere else.
 *
 * A format is a endpoint: a list of extents, each a box of a tensor stored row-major and
 * contiguous, with a function to read or write a run of one. Checkpoint shards, safetensors files
 * and a trainer's memory are endpoints; so resharding, export, import, resume and save are one copy
 * with another endpoint at one end.
 *
 * plan:    for every tensor, windows (ranges of rows) sized by the memory budget; proof that the
 *          target's extents tile what they claim and that the source covers them, each byte once.
 * execute: per window, read each source extent's run that meets it, gather and split in memory
 *          (kernels/copy.h), cast if the types differ, write each target extent's run. A run that
 *          lies contiguous at both ends passes through one buffer without a copy. Several threads
 *          take windows in order; several processes share the windows under MPI.
 */
#ifndef RESHARD_ENGINE_TRANSFER_H
#define RESHARD_ENGINE_TRANSFER_H

#include <stdbool.h>
#include <stdint.h>

#include "comm/comm.h"
#include "core/err.h"
#include "core/progress.h"
#include "reshard/engine/endpoint.h"

struct transfer {
    int n_tensors;
    const struct reshard_tensor *tensors;
    const struct reshard_endpoint *from, *to;
    int64_t memory_bytes; /* for all buffers of this process together */
    int threads;          /* threads, >= 1 */
    bool partial;      /* the target's extents may leave parts of a tensor out (one rank's resume);
                          else they must tile every tensor */
    struct comm *comm; /* processes that share the work; NULL: this one alone */
    struct progress *progress; /* bytes written; NULL: none */
    int64_t thread_bytes; /* 0: chosen; else a thread's buffer, as in the plan whose windows are to
                             be met again (transfer_plan_thread_bytes) */
};

/*
 * Who wants to look between windows. They are done in order, in rounds; between two rounds none is
 * in hand, so what endpoints have added up is of the windows 0 .. done - 1 exactly. Not for a move
 * that several processes share.
 */
struct transfer_watch {
    double round_s; /* what a round should take, in seconds; 0: as few windows as threads */
    /* After each round but the last. A failure ends the move with that status. */
    tp_status (*between)(void *ctx, int64_t done, struct tp_err *err);
    void *ctx;
};

struct transfer_stats {
    int64_t bytes_read, bytes_written; /* by this process */
    int64_t bytes_wanted;              /* what the target's extents hold, as the source stores it */
    int64_t windows;
    int64_t buffer_bytes; /* of this process */
    int splits, merges,
        copies; /* tensors by what happens to them: a source extent feeds several
                   targets; a target several sources; neither (both: counted in each) */
};

/* What happens to one tensor. */
struct transfer_tensor_stats {
    int from, to;      /* extents of it that the source and the target have */
    bool split, merge; /* see transfer_stats */
    bool cast;
};

struct transfer_plan;

/* Plan; what m points to outlives it. Collective over m->comm; all processes work with the least
 * memory and threads that any of them has. TP_E_BUDGET: even windows of one element need more than
 * memory_bytes; the sentence says how much. TP_E_CORRUPT: the source does not cover what the target
 * wants (tensor and box named), or covers it twice. TP_E_INTERNAL: the target's extents overlap or
 * leave gaps. */
tp_status transfer_plan_make(struct transfer_plan **out, const struct transfer *m,
                             struct tp_err *err);

/* What executing will do (bytes, windows, buffers). */
void transfer_plan_stats(const struct transfer_plan *p, struct transfer_stats *stats);
void transfer_plan_tensor(const struct transfer_plan *p, int tensor,
                          struct transfer_tensor_stats *stats);

/* Whom to tell of bytes written from now on; NULL: nobody. */
void transfer_plan_progress(struct transfer_plan *p, struct progress *progress);

/* A thread's buffer: with the same one, the same tensors are cut into the same windows. */
int64_t transfer_plan_thread_bytes(const struct transfer_plan *p);

/* Leave out the windows 0 .. n - 1, which are done: what the statistics and transfer_execute say is
 * of the others. */
tp_status transfer_plan_skip(struct transfer_plan *p, int64_t n, struct tp_err *err);

/* Who looks between windows; borrowed; NULL: nobody. */
void transfer_plan_watch(struct transfer_plan *p, const struct transfer_watch *watch);

/* Execute, then `check` the source; collective over the move's comm, and every process gets the
 * same status. The target is not to be committed unless this returns TP_OK. */
tp_status transfer_execute(struct transfer_plan *p, struct transfer_stats *stats,
                           struct tp_err *err);

void transfer_plan_free(struct transfer_plan *p);

#endif
