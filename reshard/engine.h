/*
 * reshard/engine.h - the one engine that moves tensors: from boxes that lie somewhere to boxes that
 * shall lie somewhere else.
 *
 * A format is a port: a list of regions, each a box of a tensor stored row-major and contiguous,
 * with a function to read or write a run of one. Checkpoint shards, safetensors files and a
 * trainer's memory are ports; so resharding, export, import, resume and save are one copy with
 * another port at one end.
 *
 * plan:    for every tensor, windows (ranges of rows) sized by the memory budget; proof that the
 *          target's regions tile what they claim and that the source covers them, each byte once.
 * execute: per window, read each source region's run that meets it, gather and split in memory
 *          (kernels/copy.h), cast if the types differ, write each target region's run. A run that
 *          lies contiguous at both ends passes through one buffer without a copy. Several threads
 *          take windows in order; several processes share the windows under MPI.
 */
#ifndef RESHARD_ENGINE_H
#define RESHARD_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "comm/comm.h"
#include "core/arena.h"
#include "core/err.h"
#include "core/progress.h"
#include "layout/box.h"
#include "layout/dtype.h"

struct reshard_extent {
    int tensor; /* index in the engine's tensors */
    struct box box;
};

struct reshard_endpoint {
    const char *what; /* "runs/ckpt/step-00000500", for messages; borrowed */
    int n_regions;
    const struct reshard_extent *regions; /* borrowed */
    const enum dtype *dtypes;             /* [n_tensors]: how elements are stored here */
    void *ctx;
    /* Move `run` (contiguous in region number `region`) to or from row-major buf. Thread safe. A
     * source has read, a target write. */
    tp_status (*read)(void *ctx, int region, const struct box *run, void *buf, struct tp_err *err);
    tp_status (*write)(void *ctx, int region, const struct box *run, const void *buf,
                       struct tp_err *err);
    /* Source: after all reads, check what was read (checksums); NULL: nothing to check. Called by
     * every process of the move, in the same order. */
    tp_status (*check)(void *ctx, struct tp_err *err);
};

struct move_tensor {
    const char *name; /* "exp_avg/model.norm.weight", for messages; borrowed */
    int ndim;
    int64_t shape[BOX_NDIM_MAX];
};

struct move {
    int n_tensors;
    const struct move_tensor *tensors;
    const struct reshard_endpoint *from, *to;
    int64_t memory_bytes; /* for all buffers of this process together */
    int jobs;             /* threads, >= 1 */
    bool partial;      /* the target's regions may leave parts of a tensor out (one rank's resume);
                          else they must tile every tensor */
    struct comm *comm; /* processes that share the work; NULL: this one alone */
    struct progress *progress; /* bytes written; NULL: none */
    int64_t worker_bytes; /* 0: chosen; else a thread's buffer, as in the plan whose windows are to
                             be met again (move_plan_worker_bytes) */
};

/*
 * Who wants to look between windows. They are done in order, in rounds; between two rounds none is
 * in hand, so what ports have added up is of the windows 0 .. done - 1 exactly. Not for a move that
 * several processes share.
 */
struct move_watch {
    double round_s; /* what a round should take, in seconds; 0: as few windows as threads */
    /* After each round but the last. A failure ends the move with that status. */
    tp_status (*between)(void *ctx, int64_t done, struct tp_err *err);
    void *ctx;
};

struct move_stats {
    int64_t bytes_read, bytes_written; /* by this process */
    int64_t bytes_wanted;              /* what the target's regions hold, as the source stores it */
    int64_t windows;
    int64_t buffer_bytes; /* of this process */
    int splits, merges,
        copies; /* tensors by what happens to them: a source region feeds several
                   targets; a target several sources; neither (both: counted in each) */
};

/* What happens to one tensor. */
struct move_tensor_stats {
    int from, to;      /* regions of it that the source and the target have */
    bool split, merge; /* see move_stats */
    bool cast;
};

struct move_plan;

/* Plan; what m points to outlives it. Collective over m->comm; all processes work with the least
 * memory and jobs that any of them has. TP_E_BUDGET: even windows of one element need more than
 * memory_bytes; the sentence says how much. TP_E_CORRUPT: the source does not cover what the target
 * wants (tensor and box named), or covers it twice. TP_E_INTERNAL: the target's regions overlap or
 * leave gaps. */
tp_status move_plan(struct move_plan **out, const struct move *m, struct tp_err *err);

/* What executing will do (bytes, windows, buffers). */
void move_plan_stats(const struct move_plan *p, struct move_stats *stats);
void move_plan_tensor(const struct move_plan *p, int tensor, struct move_tensor_stats *stats);

/* Whom to tell of bytes written from now on; NULL: nobody. */
void move_plan_progress(struct move_plan *p, struct progress *progress);

/* A thread's buffer: with the same one, the same tensors are cut into the same windows. */
int64_t move_plan_worker_bytes(const struct move_plan *p);

/* Leave out the windows 0 .. n - 1, which are done: what the statistics and move_execute say is of
 * the others. */
tp_status move_plan_skip(struct move_plan *p, int64_t n, struct tp_err *err);

/* Who looks between windows; borrowed; NULL: nobody. */
void move_plan_watch(struct move_plan *p, const struct move_watch *watch);

/* Execute, then `check` the source; collective over the move's comm, and every process gets the
 * same status. The target is not to be committed unless this returns TP_OK. */
tp_status move_execute(struct move_plan *p, struct move_stats *stats, struct tp_err *err);

void move_plan_free(struct move_plan *p);

#endif
