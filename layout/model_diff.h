/*
 * layout/model_diff.h - whether two models have the same tensors.
 */
#ifndef LAYOUT_MODEL_DIFF_H
#define LAYOUT_MODEL_DIFF_H

#include <stdbool.h>

#include "layout/model.h"

enum { MODEL_DIFF_MAX = 160 };

/* Whether the models differ in their architecture or in a dimension. buf gets the first difference,
 * "hidden_size is 64, not 128", with the value of `was` first; "" when they agree. Constants that
 * no shape depends on, such as rope_theta, are not compared. */
bool model_diff(char buf[MODEL_DIFF_MAX], const struct model *was, const struct model *now);

#endif
