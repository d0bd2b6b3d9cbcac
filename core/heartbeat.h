/*
 * core/heartbeat.h - what a rank reports to its watcher: step, phase, loss, collectives.
 *
 * Each rank has one small file, DIR/rank-00003, that begins with a struct heartbeat_status. The
 * rank maps the file and stores into it; the watcher reads it with pread. Nothing is locked, so a
 * watcher that stops or dies does not disturb the rank. Reporting costs two readings of the clock.
 * Ten times a second, at the end of a step, the rank reads for how long it had no processor.
 *
 * Times are CLOCK_MONOTONIC of the rank's host in nanoseconds (clock_ns). One thread of the rank
 * writes. Numbers are little-endian. HEARTBEAT_VERSION names the layout of the file; programs that
 * link libtp-progress (progress/tp_progress.h) write the same.
 */
#ifndef CORE_HEARTBEAT_H
#define CORE_HEARTBEAT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"

/* The environment variable by which tp-run names DIR to the ranks. Programs read it, not
 * libraries. */
#define HEARTBEAT_DIR_ENV "TP_PROGRESS_DIR"

enum {
    HEARTBEAT_VERSION = 1,
    HEARTBEAT_BYTES = 256,
    HEARTBEAT_HISTORY = 1024,
    HEARTBEAT_NAME_MAX = 24,
};

/* What a rank is doing. The watcher has a deadline for each phase. */
enum heartbeat_phase {
    HEARTBEAT_INIT,  /* from start to the first step */
    HEARTBEAT_LOAD,  /* reads a checkpoint */
    HEARTBEAT_TRAIN, /* runs steps */
    HEARTBEAT_SAVE,  /* writes a checkpoint while steps wait for it */
    HEARTBEAT_DRAIN, /* was asked to stop: runs its last step and saves */
    HEARTBEAT_DONE,  /* finished: the process may end */
    HEARTBEAT_PHASES,
};

/* The start of the file. Each word that changes is written by one aligned 8-byte store. */
struct heartbeat_status {
    char magic[8]; /* "TPSLOT\0\1"; the last byte is the version */
    int64_t rank, world;
    int64_t pid;         /* in the rank's pid namespace */
    int64_t pid_start;   /* process_stat.start, because the pid may be used again */
    int64_t opened_ns;   /* when heartbeat_open was called */
    int64_t phase;       /* enum heartbeat_phase */
    int64_t phase_ns;    /* when the phase began */
    int64_t step;        /* steps completed in the whole run; -1 until this process completes one */
    int64_t step_ns;     /* when the last step ended */
    int64_t step_len_ns; /* duration of the last step; 0 until two steps were reported */
    double loss;         /* of the last step; NaN when it is not known */
    int64_t entered;     /* collectives begun */
    int64_t left;        /* collectives ended; less than `entered` while the rank waits in one */
    int64_t wait_ns;     /* time spent in collectives so far */
    int64_t saved;       /* newest step that this job committed; -1: none */
    int64_t bad_step;    /* first step whose loss was NaN or infinite after a finite one; 0: none */
    int64_t history;     /* number of struct heartbeat_loss that follow; 0: none */
    int64_t delay_ns; /* time in which its threads could have run but had no processor, the sum of
                         all threads; 0: not known */
    int64_t gpus_missing; /* ranks of this host without a GPU, because it has too few; 0: none */
    int64_t gpu_failed;   /* 1: the rank ends because a GPU failed, its own or that of a rank with
                             which   it agreed to end; 0: not so */
    int64_t gpu_bytes;    /* memory of the rank's GPU; 0: it has none, or does not say */
    int64_t gpu_full;     /* 1: the rank ends because the memory of a GPU does not suffice; 0: not
                             so */
    int64_t spare[9];     /* 0 */
};

/* Larger numbers are damage. Sums of a few cannot overflow. */
#define HEARTBEAT_NUMBER_MAX (INT64_C(1) << 60)

_Static_assert(sizeof(struct heartbeat_status) == HEARTBEAT_BYTES, "the layout is fixed");

/* The last losses follow the status, that of step s in entry s % history. So a watcher that looks
 * rarely, or was away for a while, still sees each of them. */
struct heartbeat_loss {
    int64_t step; /* -1: the entry is being written; 0: it was never used */
    double loss;
};

/* The rank's side. NULL is valid everywhere below and does nothing. */
struct heartbeat;

/* Create this rank's file in `dir`; it appears complete. NULL or "" as dir: there is no watcher,
 * and *out is NULL. TP_E_USAGE: dir is another user's, or others can write to it (private_dir.h).
 * TP_E_IO, TP_E_NOTFOUND: the file cannot be made. Training can continue without it. */
tp_status heartbeat_open(struct heartbeat **out, const char *dir, int rank, int world,
                         struct tp_err *err);

/* `step` steps are complete; `loss` is that of the last one, NaN where this rank does not know
 * it. */
void heartbeat_step(struct heartbeat *h, int64_t step, double loss);

/* A phase begins. */
void heartbeat_phase(struct heartbeat *h, enum heartbeat_phase phase);

/* The checkpoint of `step` is committed. */
void heartbeat_saved(struct heartbeat *h, int64_t step);

/* The rank cannot start: so many ranks of this host have no GPU. */
void heartbeat_gpus_missing(struct heartbeat *h, int ranks);

/* The rank ends because a GPU failed. */
void heartbeat_gpu_failed(struct heartbeat *h);

/* The rank has a GPU with so much memory. */
void heartbeat_gpu_memory(struct heartbeat *h, int64_t bytes);

/* The rank ends because the memory of a GPU does not suffice. */
void heartbeat_gpu_full(struct heartbeat *h);

/* A collective begins (`enter`) or ends. */
void heartbeat_collective(struct heartbeat *h, bool enter);

/* Unmap the file and free h. The file stays for the watcher. `finished`: the rank ends as planned,
 * so its end is not a failure. */
void heartbeat_close(struct heartbeat *h, bool finished);

/* ---- the watcher's side ---- */

/* The name of a rank's file, rank-00003. Returns name. */
char *heartbeat_name(char name[HEARTBEAT_NAME_MAX], int rank);

/* Open the file of `rank` in the open directory `dir`. The caller closes *fd. TP_E_NOTFOUND: the
 * rank has not created its file yet. */
tp_status heartbeat_find(int *fd, int dir, int rank, struct tp_err *err);

/* Whether the open file has no name any more: the rank was started again and has another file, or
 * its file was removed. The rank may still write to it. */
bool heartbeat_is_replaced(int fd);

/* Read the status of `rank`. Step and loss belong together; the other words may be from slightly
 * different moments. TP_E_CORRUPT: not a heartbeat file of this version, another rank's, or a
 * number that no rank reports. */
tp_status heartbeat_read(struct heartbeat_status *out, int fd, int rank, struct tp_err *err);

/* The losses after step `after` up to status->step that the history in the file still has, oldest
 * first, at most `max`. Returns their number; 0 also when the file has no history. */
int heartbeat_losses(struct heartbeat_loss *out, int max, int fd,
                     const struct heartbeat_status *status, int64_t after);

/* "init", "load", ...; "?" for other numbers. */
const char *heartbeat_phase_name(int64_t phase);

#endif
