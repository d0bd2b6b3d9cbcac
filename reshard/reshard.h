/*
 * reshard/reshard.h - rewrite a checkpoint at another layout: what tp-reshard does.
 *
 * The work goes down once and returns once: reshard_run opens the source (ckpt/), lays out the
 * target (layout/), plans and executes a transfer between the two (reshard/engine/,
 * reshard/formats/), proves it, and commits the new step (ckpt/transaction.h). It never writes to
 * the source.
 */
#ifndef RESHARD_RESHARD_H
#define RESHARD_RESHARD_H

#include <limits.h>

#include "comm/control.h"
#include "core/arena.h"
#include "core/progress.h"
#include "layout/spec.h"
#include "reshard/engine/transfer.h"
#include "reshard/reshard_kinds.h"

struct reshard_request {
    const char *ckpt;     /* root or step directory */
    const char *to;       /* spec; axes that it does not name stay as they are in the source */
    const char *from;     /* spec that the source must match, or NULL: not checked */
    const char *out;      /* root, or NULL: CKPT-SPEC, the whole new layout */
    int64_t step;         /* -1: the newest complete one */
    int64_t memory_bytes; /* the most resident memory of this process */
    int threads;
    bool no_optim;           /* weights only */
    const enum dtype *dtype; /* cast the weights; NULL: no cast */
    bool force;              /* replace the step of OUT when it exists */
    bool dry_run;            /* plan and prove only; create nothing */
    double journal_s;        /* seconds between records of progress; 0: after each round of tiles */
    struct comm_control *control; /* processes that share the work; NULL: this one alone */
    struct progress *progress;    /* counts bytes written and receives notes; NULL: none */
};

struct reshard_report {
    struct arena arena; /* of everything below */
    char dir[PATH_MAX]; /* step directory of the source */
    char out[PATH_MAX]; /* root of the target */
    struct spec from, to;
    struct spec kept; /* the axes that the request did not name and that are not 1 in the source;
                         kept.given has their bits */
    int64_t step;
    int n_tensors, boxes_from, boxes_to;
    int64_t *rank_bytes;           /* [ranks of `to`] payload of each rank's file; 0: it has none */
    struct transfer_stats planned; /* of this process */
    const struct reshard_kind *kinds; /* only of a dry run */
    int n_kinds;

    /* All processes together: what was done, or what a dry run foresees. */
    int processes;
    int64_t bytes_read, bytes_written, tiles;
    int64_t peak_bytes; /* resident memory of the process that has most */
    int64_t base_bytes; /* of it, the program and its tables */
    double seconds;

    /* Proof. Every chunk that was read had the checksum that the source states. */
    int digests_equal; /* tensors whose digest is the same in source and target */
    int casts; /* tensors that were cast: what was written has the digest of the cast of what was
                  read */

    int64_t resumed_tiles, all_tiles; /* completed by an interrupted run before; of the whole job */
    int64_t damaged_chunks; /* of what the interrupted run wrote; they were written again */
};

/* Reshard. With control it is collective: every process gets the status and the report.
 *
 * One process alone keeps a journal, and resumes what an interrupted run of the same request left
 * in OUT. While it copies, SIGINT and SIGTERM are blocked, and between rounds of tiles it checks
 * whether one is pending (core/stop.h). Then it returns TP_E_STOPPED; what was begun stays, and the
 * same request resumes it. After any other failure nothing has appeared, and what was begun is
 * removed. The report is filled in on TP_OK, and freed by reshard_report_free in any case. */
tp_status reshard_run(struct reshard_report *report, const struct reshard_request *request,
                      struct tp_err *err);

/* Files of the target. */
int reshard_report_files(const struct reshard_report *r);
void reshard_report_free(struct reshard_report *r);

#endif
