/*
 * orchestrator/watch/loss_watch.h - finds losses that are not finite or that jump, step by step.
 *
 * A loss jumps when it is above the median of the last losses by more than `jump` times their
 * spread (from the 10th to the 90th percentile). A jump is reported once; then the
 * new level counts as normal. No jump is reported before 20 losses. A program that never reported a
 * finite loss does not report losses, so none is judged. No I/O.
 */
#ifndef ORCHESTRATOR_WATCH_LOSS_WATCH_H
#define ORCHESTRATOR_WATCH_LOSS_WATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LOSS_WATCH_WINDOW = 64 };

enum loss_watch_finding { LOSS_WATCH_FINE, LOSS_WATCH_NOT_FINITE, LOSS_WATCH_JUMP };

struct loss_watch {
    double jump;       /* 0: jumps are not reported */
    bool known;        /* a finite loss was given */
    bool reported_nan; /* a loss that is not finite is reported once */
    int64_t last_step; /* the last step that was given; start with -1 */
    int n;
    double last[LOSS_WATCH_WINDOW];
};

/* Give the loss of a step. Steps that were given before are ignored. If the loss is not
 * fine, text gets a sentence. */
enum loss_watch_finding loss_watch_step(struct loss_watch *w, int64_t step, double loss, char *text,
                                        size_t size);

#endif
