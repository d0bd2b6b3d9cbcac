/*
 * trainer/loop.h - a rank's whole run: restore, steps, saves, and when it stops.
 */
#ifndef TRAINER_LOOP_H
#define TRAINER_LOOP_H

#include <stdbool.h>

#include "trainer/trainer.h"

/* Where the run prints its lines, on rank 0 only. is_step: the line of a step; else a message. */
struct loop_output {
    void (*print)(void *ctx, bool is_step, const char *line);
    void *ctx;
};

/* Train t (open, weights zero) to the end of the run. Collective. TP_E_STOPPED: saved and stopped
 * before the end, by --exit-step or because a rank was asked to stop (core/stop.h); err has the
 * step. *agreed: all ranks know of the failure, so only one of them should print it. */
tp_status loop_run(struct trainer *t, const struct loop_output *out, bool *agreed,
                   struct tp_err *err);

#endif
