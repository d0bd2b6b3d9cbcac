/*
 * tp_progress.h - tell tp-run how far a rank is. Five calls for any trainer; link -ltp-progress.
 *
 *     struct tp_progress *p = tp_progress_open(rank, world);
 *     for (step = 0; step < steps; step++) {
 *         tp_progress_collective(p, 1);      before a collective (optional, names who hangs)
 *         all_reduce(...);
 *         tp_progress_collective(p, 0);      after it
 *         tp_progress_step(p, step + 1, loss);
 *     }
 *     tp_progress_close(p);
 *
 * Outside of tp-run (TP_PROGRESS_DIR is not set) open returns NULL, and every call takes NULL and
 * does nothing. After open there are no system calls and no locks; a call costs some 100 ns. One
 * thread of a rank calls. docs/ORCHESTRATOR.md tells what tp-run makes of it.
 */
#ifndef TP_PROGRESS_H
#define TP_PROGRESS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tp_progress;

/* Visible though the library hides the rest. */
#define TP_PROGRESS_API __attribute__((visibility("default")))

enum tp_phase {
    TP_PHASE_INIT = 0,  /* from start to the first step: where open leaves it */
    TP_PHASE_LOAD = 1,  /* reading a checkpoint */
    TP_PHASE_TRAIN = 2, /* steps */
    TP_PHASE_SAVE = 3,  /* writing a checkpoint, while steps wait for it */
    TP_PHASE_DRAIN = 4, /* was asked to stop: the last step and its save */
};

/* This rank's slot, made under $TP_PROGRESS_DIR. NULL: not under tp-run, or it cannot be made. */
TP_PROGRESS_API struct tp_progress *tp_progress_open(int rank, int world);

/* `step` steps of the whole run are done, the last with this loss (NaN where it is not known). */
TP_PROGRESS_API void tp_progress_step(struct tp_progress *p, int64_t step, double loss);

/* A phase begins. */
TP_PROGRESS_API void tp_progress_phase(struct tp_progress *p, enum tp_phase phase);

/* enter 1: a collective begins; 0: it is over. */
TP_PROGRESS_API void tp_progress_collective(struct tp_progress *p, int enter);

/* This rank ends in order. Frees p. */
TP_PROGRESS_API void tp_progress_close(struct tp_progress *p);

#ifdef __cplusplus
}
#endif

#endif
