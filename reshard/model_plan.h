/*
 * reshard/model_plan.h - the plan of a reshard of a checkpoint that does not exist: of a model that
 * is trained in bf16 at one layout, to another.
 *
 * Tensors that are cut alike are planned once. So a model with millions of boxes takes little time
 * and memory.
 */
#ifndef RESHARD_MODEL_PLAN_H
#define RESHARD_MODEL_PLAN_H

#include "reshard/reshard.h"

/* Fill in the report as a dry run does; its `step` is -1, and `dir` is the model's path. `from` and
 * `to` of the request must be given. It uses no_optim, dtype, memory_bytes (for the buffers alone)
 * and threads, too; the other fields are for checkpoints. The report is freed by
 * reshard_report_free in any case. TP_E_USAGE, TP_E_NOTFOUND: as model_config_read. TP_E_LAYOUT: a
 * layout does not fit the model. */
tp_status model_plan_make(struct reshard_report *report, const char *model,
                          const struct reshard_request *request, struct tp_err *err);

#endif
