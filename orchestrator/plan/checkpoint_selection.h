/*
 * orchestrator/plan/checkpoint_selection.h - the checkpoint that an attempt begins from.
 *
 * It is the newest complete step, if it verifies. A step that twice failed to verify or to load is
 * moved to ROOT/quarantine/, and the next older step is selected. If a root had steps but none
 * remains, that is an error: a job never begins again from step 0 by itself.
 */
#ifndef ORCHESTRATOR_PLAN_CHECKPOINT_SELECTION_H
#define ORCHESTRATOR_PLAN_CHECKPOINT_SELECTION_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"
#include "layout/spec.h"

struct checkpoint_selection {
    int64_t step;       /* the newest complete step, -1: none */
    char dir[PATH_MAX]; /* its folder */
    struct spec spec;   /* layout that wrote it */
    int64_t bytes;      /* of its files */
    bool any_ever;      /* the root has or had steps: complete, damaged or in quarantine */
};

/* Select from ROOT, a folder or a prefix of a store. A root that does not exist has no steps.
 * TP_E_IO, TP_E_CORRUPT; TP_E_USAGE: there are no credentials for the store. */
tp_status checkpoint_select(struct checkpoint_selection *out, const char *root, struct tp_err *err);

/* Move the step to ROOT/quarantine/, so that nothing resumes from it. *to gets its new path. In a
 * store only its manifest is moved, and *to is that of the manifest. */
tp_status checkpoint_quarantine(char to[PATH_MAX], const struct checkpoint_selection *c,
                                const char *root, struct tp_err *err);

#endif
