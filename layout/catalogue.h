/*
 * layout/catalogue.h - the tensors of each architecture by role, their shapes and storage.
 * What they are called and how they are cut is the plan's to say (layout/parallel_plan.h).
 */
#ifndef LAYOUT_CATALOGUE_H
#define LAYOUT_CATALOGUE_H

#include <stdbool.h>

#include "layout/model.h"
#include "layout/parallel_plan.h"

/* Whether a model of this architecture has a tensor of this role. */
bool catalogue_has(enum model_arch arch, enum tensor_role role);

#endif
