/*
 * orchestrator/watch/monitor.h - from what ranks tell to what is wrong: hangs, slow ranks, bad
 * losses.
 *
 * Pure: slots and the watcher's own monotonic clock go in, verdicts come out; no I/O, no wall
 * clock. Times in nanoseconds.
 *
 * Hang. A rank makes progress when any of step, collective number or phase changes. One that made
 * none for longer than the deadline is stuck: max(floor, factor x p99 of the job's own step
 * times), or the cap of its phase (init, load, save) while such a phase lasts. Until five steps
 * were seen the step time of earlier launches stands in, or the time that it took to the first
 * step. Ranks of a synchronous job stop together, so blame goes to the one that is furthest behind:
 * the lowest (step, collectives begun and ended). Where several are equally far, one that the
 * kernel shows as stopped, traced or in an uninterruptible wait is taken; else it is said that they
 * cannot be told apart. A watcher that was stopped itself (or the whole machine), or a job that was
 * suspended, does not count that time, and nothing is learnt from the steps that it falls into.
 *
 * Slow. Of each step a rank computes for a part and waits in collectives for the rest; the slow
 * rank is the one that does not wait. Over slow_steps steps its computing time must be `slow` times
 * the median of all ranks.
 *
 * Loss. Rank 0's, of every step (orchestrator/watch/loss_watch.h).
 */
#ifndef ORCHESTRATOR_WATCH_MONITOR_H
#define ORCHESTRATOR_WATCH_MONITOR_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"
#include "core/heartbeat.h"

struct monitor_limits {
    int64_t floor_ns, init_ns, save_ns;
    double factor, slow, jump;
    int64_t slow_steps;
    int64_t prior_ns; /* a step's time in earlier launches, 0: not known */
    bool loss_known;  /* a finite loss was told before this launch, so NaN means NaN */
};

enum monitor_what {
    MONITOR_FINE,
    MONITOR_HANG,
    MONITOR_SLOW, /* told once a rank and launch */
    MONITOR_NAN,  /* told once a launch */
    MONITOR_JUMP, /* told once for every jump */
};

struct monitor_verdict {
    enum monitor_what what;
    int rank;     /* guilty; -1: cannot be told */
    int64_t step; /* of that rank */
    int64_t waited_ns, deadline_ns;
    int64_t phase;  /* enum heartbeat_phase */
    double value;   /* SLOW: times the median; NAN, JUMP: the loss */
    char text[256]; /* one sentence */
};

struct monitor;

/* A monitor for one launch of `world` ranks, from now on. NULL: no memory. */
struct monitor *monitor_new(int world, const struct monitor_limits *limits, int64_t now_ns);
void monitor_free(struct monitor *m);

/* What rank's slot shows now. process_state: as of process_state(), 0 when not known. */
void monitor_feed(struct monitor *m, int rank, const struct heartbeat_status *slot,
                  char process_state, int64_t now_ns);

/* How long ago this rank's slot last changed; 0: it has none yet. */
int64_t monitor_silence(const struct monitor *m, int rank, int64_t now_ns);

/* The loss of a step, in the order of steps; those that were heard before are passed over. */
void monitor_loss_of(struct monitor *m, int64_t step, double loss);

/* The last step whose loss was heard, -1: none. */
int64_t monitor_heard(const struct monitor *m);

/* The job stands still by somebody's will: call at each look instead of monitor_judge. */
void monitor_hold(struct monitor *m, int64_t now_ns);

/* Call at each look, after the feeds. */
void monitor_judge(struct monitor *m, struct monitor_verdict *out, int64_t now_ns);

/* ---- what it knows ---- */

int64_t monitor_step(const struct monitor *m);      /* lowest of all ranks, -1: not all began */
int64_t monitor_best_step(const struct monitor *m); /* highest of any rank, -1: none */
int64_t monitor_saved(const struct monitor *m);     /* newest committed, -1 */
double monitor_loss(const struct monitor *m);
double monitor_step_seconds(const struct monitor *m); /* median, 0: not known */
int64_t monitor_deadline(const struct monitor *m);    /* for a training step, ns */
double monitor_load_seconds(const struct monitor *m); /* longest of any rank, 0: not seen */
bool monitor_saving(const struct monitor *m);
bool monitor_present(const struct monitor *m, int rank,
                     struct heartbeat_status *slot); /* last fed */

#endif
