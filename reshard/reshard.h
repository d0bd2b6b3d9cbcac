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

#include "comm/control.h"
#include "core/progress.h"
#include "reshard/reshard_report.h"

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
    int zstd;                /* level with which shards are compressed; 0: they are not */
    bool link;               /* keep the source's files as hard links, where they can all stay */
    bool raw;                /* no compressed files, though link keeps those of the source */
    bool no_clone;           /* copy and check also what the file system could clone */
    bool force;              /* replace the step of OUT if it exists */
    bool dry_run;            /* plan and prove only; create nothing */
    double journal_s;        /* seconds between records of progress; 0: after each round of tiles */
    const struct transfer_device *device; /* copies with it; NULL: the threads do everything */
    struct comm_control *control;         /* processes that share the work; NULL: this one alone */
    struct progress *progress;            /* counts bytes written and receives notes; NULL: none */
};

/* Reshard. With control it is collective: every process gets the status and the report.
 *
 * One process alone keeps a journal, and resumes what an interrupted run of the same request left
 * in OUT. While it copies, SIGINT, SIGTERM and SIGHUP are blocked, and between rounds of tiles it
 * checks whether one is pending (core/stop.h). Then it returns TP_E_STOPPED; what was begun stays,
 * and the same request resumes it. (With several processes there is no journal: what was begun is
 * removed.) After any other failure nothing has appeared, and what was begun is removed. The report
 * is filled in on TP_OK, and freed by reshard_report_free in any case. */
tp_status reshard_run(struct reshard_report *report, const struct reshard_request *request,
                      struct tp_err *err);

#endif
