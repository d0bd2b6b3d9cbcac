/*
 * layout/model_tensors.h - the tensors of a model: with the shapes of its family's table
 * (layout/family.h), and the names and cuts of its parallel plan (layout/parallel_plan.h).
 */
#ifndef LAYOUT_MODEL_TENSORS_H
#define LAYOUT_MODEL_TENSORS_H

#include "core/arena.h"
#include "core/err.h"
#include "layout/model.h"
#include "layout/tensor.h"
#include "layout/tensor_kinds.h"

/* The parameters in canonical order (embedding, layers, norm, head), group "param". A tied head is
 * absent. *tensors lives in the arena. TP_E_USAGE: the plan does not fit the model
 * (parallel_plan_check). */
tp_status model_params(struct tensor **tensors, int *n, const struct model *m, enum dtype dtype,
                       struct arena *arena, struct tp_err *err);

/* The parameters once for each group that training in `dtype` saves: param, master (only bf16),
 * exp_avg, exp_avg_sq. All but param are f32. */
tp_status model_state(struct tensor **tensors, int *n, const struct model *m, enum dtype dtype,
                      struct arena *arena, struct tp_err *err);

/* The kinds of the parameters, found from one layer. Errors as model_params. */
tp_status model_kinds(struct tensor_kinds *out, const struct model *m, struct arena *arena,
                      struct tp_err *err);

#endif
