/*
 * trainer/resume_step.h - which step of a checkpoint root a run begins with.
 *
 * Rank 0 chooses: the step of --step, or the newest one. When a step turns out to be damaged while
 * it is read, the next older one is taken. Steps that were passed over are remembered, because that
 * must never be silent.
 */
#ifndef TRAINER_RESUME_STEP_H
#define TRAINER_RESUME_STEP_H

#include <stdint.h>

#include "core/err.h"
#include "trainer/config.h"

enum { RESUME_STEP_LISTED = 4, RESUME_STEP_WHY_MAX = 600 };

struct resume_step {
    int64_t step;   /* to begin with; -1: none, the run starts from the beginning */
    int64_t newest; /* the newest complete step of the root; -1: none */
    int n_damaged;  /* newer steps that were skipped */
    struct {        /* the first of them, newest first */
        int64_t step;
        char why[RESUME_STEP_WHY_MAX];
    } damaged[RESUME_STEP_LISTED];
};

/* Before the first call of resume_step_choose. */
struct resume_step resume_step_init(void);

/* Choose the step, or after resume_step_reject the next older one. r->step is -1 when the root has
 * no step and may be empty.
 * TP_E_EXISTS: no --resume, but the root has steps. TP_E_NOTFOUND: --resume=must without a step, or
 * there is no step --step. TP_E_CORRUPT: --step is damaged, or all steps are: a new start would
 * lose them silently. */
tp_status resume_step_choose(struct resume_step *r, const struct train_config *c,
                             struct tp_err *err);

/* Returns st. When the step of --step is damaged, the message says how to resume from another. */
tp_status resume_step_advise(tp_status st, const struct train_config *c, struct tp_err *err);

/* The chosen step is damaged. */
void resume_step_reject(struct resume_step *r, const char *why);

#endif
