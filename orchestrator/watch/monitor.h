/*
 * orchestrator/watch/monitor.h - finds hangs, slow ranks and bad losses in what the ranks report.
 *
 * The input is heartbeats and the watcher's monotonic clock; the output is verdicts. There is no
 * I/O and no wall clock. Times are in nanoseconds.
 *
 * Hang. A rank makes progress when its step, its collective number or its phase changes. It is
 * stuck when it made no progress for longer than the deadline: max(floor, factor x p99 of the job's
 * own step times), or the limit of its phase (init, load, save). Until five steps were seen, the
 * step time of earlier launches is used instead, or the time to the first step. The ranks of a
 * synchronous job stop together, so the verdict names the rank that is furthest behind: the lowest
 * (step, collectives begun and ended). If several are equally far behind, it names the one that the
 * kernel shows as stopped, traced or in an uninterruptible wait, or none. Time in which the watcher
 * did not run or the job was suspended does not count, and steps around it are not measured.
 *
 * Slow. A rank that computes longer than the others, and steps that have become slow: see pace.h.
 *
 * Loss. The loss of rank 0 is judged at every step (loss_watch.h).
 */
#ifndef ORCHESTRATOR_WATCH_MONITOR_H
#define ORCHESTRATOR_WATCH_MONITOR_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"
#include "core/heartbeat.h"
#include "orchestrator/watch/pace.h"

struct monitor_limits {
    int64_t floor_ns, init_ns, save_ns;
    bool saves_wait; /* for a store, which may not answer for a while: none has less than save_ns */
    double factor, slow, jump;
    int64_t slow_steps;
    int64_t prior_ns; /* time of a step in earlier launches, 0: not known */
    bool loss_known;  /* a finite loss was reported before this launch, so NaN is a fault */
};

enum monitor_kind {
    MONITOR_FINE,
    MONITOR_HANG,
    MONITOR_SLOW,     /* reported once for a rank and launch */
    MONITOR_SLOWDOWN, /* steps are slow; reported once, until they were fast again */
    MONITOR_NAN,      /* reported once for a launch */
    MONITOR_JUMP,     /* reported once for each jump */
};

struct monitor_verdict {
    enum monitor_kind kind;
    int rank;     /* the one at fault, -1: none can be named */
    bool started; /* HANG: that rank has ever reported */
    bool stopped; /* HANG: the kernel shows it as stopped (SIGSTOP, a debugger) */
    int64_t step; /* of that rank */
    int64_t waited_ns, deadline_ns;
    int64_t phase; /* enum heartbeat_phase */
    double value; /* SLOW: multiple of the median; SLOWDOWN: of the steps before; NAN, JUMP: loss */
    enum pace_part part; /* SLOWDOWN */
    char text[256];      /* one sentence */
};

struct monitor;

/* Make a monitor for one launch of `world` ranks, which begins now. NULL: no memory. */
struct monitor *monitor_new(int world, const struct monitor_limits *limits, int64_t now_ns);
void monitor_free(struct monitor *m);

/* Set the pipeline stage of a rank (initially 0): ranks are compared within their stage. */
void monitor_set_stage(struct monitor *m, int rank, int stage);

/* Pass the current heartbeat of a rank. process_state: of process_state(), 0: not known. */
void monitor_feed(struct monitor *m, int rank, const struct heartbeat_status *status,
                  char process_state, int64_t now_ns);

/* The time since this rank last made progress; 0: it has not reported yet. */
int64_t monitor_silence(const struct monitor *m, int rank, int64_t now_ns);

/* Pass the loss of a step. Steps must be in order; steps that were passed before are ignored. */
void monitor_add_loss(struct monitor *m, int64_t step, double loss);

/* The last step whose loss was passed, -1: none. */
int64_t monitor_last_loss_step(const struct monitor *m);

/* The job is suspended: call this at each check instead of monitor_judge. */
void monitor_hold(struct monitor *m, int64_t now_ns);

/* Judge the reports so far; call this at each check. */
void monitor_judge(struct monitor *m, struct monitor_verdict *out, int64_t now_ns);

/* ---- what the monitor knows ---- */

int64_t monitor_step(const struct monitor *m);      /* lowest of all ranks, -1: not all began */
int64_t monitor_best_step(const struct monitor *m); /* highest of any rank, -1: none */
int64_t monitor_saved(const struct monitor *m);     /* newest committed, -1 */
double monitor_loss(const struct monitor *m);
double monitor_step_seconds(const struct monitor *m); /* median, 0: not known */
int64_t monitor_deadline(const struct monitor *m);    /* for a training step, ns */
double monitor_load_seconds(const struct monitor *m); /* longest of any rank, 0: not seen */
bool monitor_saving(const struct monitor *m);
double monitor_compute_seconds(const struct monitor *m,
                               int rank); /* computing time of a step, 0: not known */
bool monitor_present(const struct monitor *m, int rank,
                     struct heartbeat_status *status); /* the last heartbeat */

#endif
