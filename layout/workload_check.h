/*
 * layout/workload_check.h - whether tp-train can run a workload with a model at a mesh.
 *
 * These rules are stated here alone: tp-train refuses by them (trainer/config.h), and tp-run plans
 * by them (orchestrator/plan/fit.h). Whether the mesh divides tensors and layers is for
 * layout_check (layout/layout_check.h), whether memory suffices for the memory estimate. Each
 * message names the flag, the numbers, and a value that would work.
 */
#ifndef LAYOUT_WORKLOAD_CHECK_H
#define LAYOUT_WORKLOAD_CHECK_H

#include "core/err.h"
#include "layout/model.h"
#include "layout/spec.h"
#include "layout/workload.h"

/* What no layout can change: lengths and counts, the dtype, same_bits and the model. Lengths and
 * counts must be known. TP_E_USAGE. */
tp_status workload_check_run(const struct workload *w, const struct model *m, struct tp_err *err);

/* What the mesh requires of the model (NULL: not known) and of the batch, however the batch is cut
 * into microbatches. What depends on unknown numbers is taken to hold. TP_E_LAYOUT. */
tp_status workload_check_mesh(const struct workload *w, const struct spec *s, const struct model *m,
                              struct tp_err *err);

/* What the mesh requires of the microbatches; call it after workload_check_mesh. TP_E_USAGE,
 * TP_E_LAYOUT. */
tp_status workload_check_micro(const struct workload *w, const struct spec *s, struct tp_err *err);

#endif
