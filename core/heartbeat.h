/*
 * core/heartbeat.h - the progress slot: what a rank tells to whoever watches it.
 *
 * One file a rank, DIR/rank-00003, of fixed layout (struct heartbeat_slot), mapped by the rank that
 * writes it and read with pread by the watcher. There are no locks and no system calls after
 * heartbeat_open: a rank stores a few aligned words, so that telling costs two readings of the
 * clock and a watcher that dies or stops costs nothing. DIR comes from the environment
 * (HEARTBEAT_DIR_ENV); without it heartbeat_open gives NULL, and every call takes NULL and does
 * nothing.
 *
 * Times are CLOCK_MONOTONIC of the rank's host, in nanoseconds: never the wall clock.
 * One thread of the rank writes. Numbers are little-endian; the layout is frozen by
 * HEARTBEAT_VERSION, and the same for programs that link libtp-progress (progress/tp_progress.h).
 */
#ifndef CORE_HEARTBEAT_H
#define CORE_HEARTBEAT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"

#define HEARTBEAT_DIR_ENV "TP_PROGRESS_DIR"

enum { HEARTBEAT_VERSION = 1, HEARTBEAT_BYTES = 256, HEARTBEAT_HISTORY = 1024 };

/* What a rank is doing. Deadlines are kept for each apart. */
enum heartbeat_phase {
    HEARTBEAT_INIT,  /* from start to the first step */
    HEARTBEAT_LOAD,  /* reading a checkpoint */
    HEARTBEAT_TRAIN, /* steps */
    HEARTBEAT_SAVE,  /* writing a checkpoint, while steps wait for it */
    HEARTBEAT_DRAIN, /* was asked to stop: the last step and its save */
    HEARTBEAT_DONE,  /* closed in order: the process may go */
    HEARTBEAT_PHASES,
};

/* The file. Words that change are written with one aligned 8-byte store each. */
struct heartbeat_slot {
    char magic[8]; /* "TPSLOT\0\1": the last byte is the version */
    int64_t rank, world;
    int64_t pid;         /* in the rank's own pid namespace */
    int64_t pid_start;   /* field 22 of /proc/PID/stat: tells a reused pid from the rank */
    int64_t opened_ns;   /* when heartbeat_open was called */
    int64_t phase;       /* enum heartbeat_phase */
    int64_t phase_ns;    /* when the phase began */
    int64_t step;        /* steps done in the whole run; -1 until this process has done one */
    int64_t step_ns;     /* when the last step ended */
    int64_t step_len_ns; /* how long it took */
    double loss;         /* of the last step; NaN when there is none */
    int64_t entered;     /* collectives begun */
    int64_t left;        /* collectives ended; less than entered: waiting inside one */
    int64_t wait_ns;     /* time spent inside collectives so far */
    int64_t saved;       /* newest step that is committed, -1: none by this job */
    int64_t bad_step;    /* first step whose loss was not finite after one that was, 0: none */
    int64_t history;     /* entries of struct heartbeat_loss behind the slot, 0: none */
    int64_t spare[14];   /* 0 */
};
_Static_assert(sizeof(struct heartbeat_slot) == HEARTBEAT_BYTES, "the slot's layout is frozen");

/* Behind the slot lie the last losses, step s in entry s % history, so that a watcher who looks
 * rarely, or was not there for a while, still sees every one. */
struct heartbeat_loss {
    int64_t step; /* -1: the entry is being written; 0: never was */
    double loss;
};

struct heartbeat;

/* Make this rank's slot in dir (NULL: $TP_PROGRESS_DIR; when that is unset too *out = NULL and all
 * is well). The file appears whole. TP_E_IO: cannot be made; training can go on without. */
tp_status heartbeat_open(struct heartbeat **out, const char *dir, int rank, int world,
                         struct tp_err *err);

/* `step` steps are done, the last with this loss (NaN: not known on this rank). step_len_ns stays 0
 * until two steps were told. */
void heartbeat_step(struct heartbeat *s, int64_t step, double loss);

/* A new phase begins. */
void heartbeat_phase(struct heartbeat *s, enum heartbeat_phase phase);

/* A checkpoint of `step` is committed. */
void heartbeat_saved(struct heartbeat *s, int64_t step);

/* enter: a collective begins; else the one that had begun is over. */
void heartbeat_collective(struct heartbeat *s, bool enter);

/* Unmap; the file stays for the watcher. in_order: this rank is done, that it ends is no fault. */
void heartbeat_close(struct heartbeat *s, bool in_order);

/* ---- the watcher's side ---- */

/* DIR/rank-00003 into buf. Returns buf. */
char *heartbeat_path(char *buf, int buf_size, const char *dir, int rank);

/* Read a slot as it is now. TP_E_NOTFOUND: the rank has not opened it yet; TP_E_CORRUPT: not a slot
 * of this version, or another rank's. Counters that changed between are those of one moment or the
 * next: step and loss belong together. */
tp_status heartbeat_read(struct heartbeat_slot *out, const char *path, int rank,
                         struct tp_err *err);

/* Losses of the steps after `after` up to slot->step as the history in path has them, oldest first,
 * at most `max`. Returns how many: 0 also where the file has no history. */
int heartbeat_losses(struct heartbeat_loss *out, int max, const char *path,
                     const struct heartbeat_slot *slot, int64_t after);

const char *heartbeat_phase_name(int64_t phase);

/* CLOCK_MONOTONIC in nanoseconds. */
int64_t heartbeat_clock_ns(void);

#endif
