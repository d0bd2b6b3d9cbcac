/*
 * tp_progress.h - report a trainer's progress to tp-run. Five calls for any trainer; link with
 * -ltp-progress.
 *
 *     struct tp_progress *p = tp_progress_open(rank, world);
 *
 *     for (step = 0; step < steps; step++) {
 *         tp_progress_collective(p, 1);    before a collective; optional: shows which rank hangs
 *         all_reduce(...);
 *         tp_progress_collective(p, 0);    after it
 *         tp_progress_step(p, step + 1, loss);
 *     }
 *     tp_progress_close(p);
 *
 * When tp-run did not start the program (TP_PROGRESS_DIR is not set), open returns NULL; all calls
 * accept NULL and do nothing. After open there are no system calls and no locks, and a call takes
 * about 100 ns. Only one thread of a rank may call. The guide of tp-run describes what it does with
 * the reports.
 */
#ifndef TP_PROGRESS_H
#define TP_PROGRESS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tp_progress;

/* Exported; the library hides all other symbols. */
#define TP_PROGRESS_API __attribute__((visibility("default")))

enum tp_phase {
    TP_PHASE_INIT = 0,  /* from start to the first step; open sets it */
    TP_PHASE_LOAD = 1,  /* reads a checkpoint */
    TP_PHASE_TRAIN = 2, /* runs steps */
    TP_PHASE_SAVE = 3,  /* writes a checkpoint while steps wait for it */
    TP_PHASE_DRAIN = 4, /* was asked to stop: runs its last step and saves */
};

/* Begin to report as `rank` of `world`, in a file below $TP_PROGRESS_DIR. NULL: tp-run did not
 * start this program, or the file cannot be created. */
TP_PROGRESS_API struct tp_progress *tp_progress_open(int rank, int world);

/* `step` steps of the whole run are complete; `loss` is that of the last one, NaN: not known. */
TP_PROGRESS_API void tp_progress_step(struct tp_progress *p, int64_t step, double loss);

/* A phase begins. */
TP_PROGRESS_API void tp_progress_phase(struct tp_progress *p, enum tp_phase phase);

/* A collective begins (enter is 1) or ends (0). */
TP_PROGRESS_API void tp_progress_collective(struct tp_progress *p, int enter);

/* This rank ends as planned. Frees p. */
TP_PROGRESS_API void tp_progress_close(struct tp_progress *p);

#ifdef __cplusplus
}
#endif

#endif
