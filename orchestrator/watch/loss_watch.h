/*
 * orchestrator/watch/loss_watch.h - losses, step by step: one that is not finite, one that jumped.
 *
 * A jump is a loss above the median of the last losses by more than `jump` times their spread (from
 * the 10th to the 90th percentile); it is told once, and the new level is learnt. Before 20 losses
 * nothing jumps. A program that never told a finite loss is taken not to know it. Pure.
 */
#ifndef ORCHESTRATOR_WATCH_LOSS_WATCH_H
#define ORCHESTRATOR_WATCH_LOSS_WATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LOSS_WATCH_WINDOW = 64 };

enum loss_watch_finding { LOSS_FINE, LOSS_NOT_FINITE, LOSS_JUMPED };

struct loss_watch {
    double jump;   /* 0: jumps are not looked for */
    bool known;    /* a finite loss was told */
    bool told_nan; /* one that is not finite is told once */
    int64_t heard; /* the last step that was looked at; start with -1 */
    int n;
    double last[LOSS_WATCH_WINDOW];
};

/* The loss of `step`; steps that were heard before are passed over. text gets a sentence when there
 * is something to tell. */
enum loss_watch_finding loss_watch_step(struct loss_watch *w, int64_t step, double loss, char *text,
                                        size_t size);

#endif
