/*
 * trainer/loop.h - a rank's whole run: where it begins, the steps, what is saved when, when it
 * stops.
 */
#ifndef TRAINER_LOOP_H
#define TRAINER_LOOP_H

#include <stdbool.h>

#include "trainer/trainer.h"

/* How the run speaks to people; called on rank 0 only. result: a step's line; else news. */
struct loop_voice {
    void (*say)(void *ctx, bool result, const char *line);
    void *ctx;
};

/* Train t (open, weights zero) to the end of the run. Collective.
 * TP_E_STOPPED: saved and stopped before the end, by --exit-step or because some rank was asked to
 * (core/stop.h); err says at which step. *agreed: the failure is known to all ranks, and one of
 * them should print it. */
tp_status loop_run(struct trainer *t, const struct loop_voice *v, bool *agreed, struct tp_err *err);

#endif
