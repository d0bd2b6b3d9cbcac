/*
 * orchestrator/plan/checkpoint_selection.h - which checkpoint an attempt begins from.
 *
 * The newest complete step, if it verifies; one that failed twice (to verify or to load) is moved
 * to ROOT/quarantine/, and the next older one is taken. A root that ever held a step is never begun
 * from the start silently: when none is left, that is an error.
 */
#ifndef ORCHESTRATOR_PLAN_CHECKPOINT_SELECTION_H
#define ORCHESTRATOR_PLAN_CHECKPOINT_SELECTION_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"
#include "layout/spec.h"

struct checkpoint_selection {
    int64_t step;       /* newest complete, -1: none */
    char dir[PATH_MAX]; /* its folder */
    struct spec spec;   /* layout that wrote it */
    int64_t bytes;      /* of its files */
    bool any_ever;      /* there are or were steps: complete, damaged or quarantined */
};

/* Look at ROOT. A root that does not exist has none. */
tp_status checkpoint_find(struct checkpoint_selection *out, const char *root, struct tp_err *err);

/* Move ROOT/step-N away, so that nothing resumes from it. *to gets where it went. */
tp_status checkpoint_quarantine(char to[PATH_MAX], const struct checkpoint_selection *c,
                                const char *root, struct tp_err *err);

#endif
