/*
 * orchestrator/choice.h - which checkpoint an attempt begins from.
 *
 * The newest complete step, if it verifies; one that failed twice (to verify or to load) is moved
 * to ROOT/quarantine/, and the next older one is taken. A root that ever held a step is never begun
 * from the start silently: when none is left, that is an error.
 */
#ifndef ORCHESTRATOR_CHOICE_H
#define ORCHESTRATOR_CHOICE_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"
#include "layout/spec.h"

struct choice {
    int64_t step;       /* newest complete, -1: none */
    char dir[PATH_MAX]; /* its folder */
    struct spec spec;   /* layout that wrote it */
    int64_t bytes;      /* of its files */
    bool any_ever;      /* there are or were steps: complete, damaged or quarantined */
};

/* Look at ROOT. A root that does not exist has none. */
tp_status choice_find(struct choice *out, const char *root, struct tp_err *err);

/* Move ROOT/step-N away, so that nothing resumes from it. *to gets where it went. */
tp_status choice_quarantine(char to[PATH_MAX], const struct choice *c, const char *root,
                            struct tp_err *err);

#endif
