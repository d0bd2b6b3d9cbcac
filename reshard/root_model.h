/*
 * reshard/root_model.h - the steps of a checkpoint root are of one model.
 */
#ifndef RESHARD_ROOT_MODEL_H
#define RESHARD_ROOT_MODEL_H

#include <stdint.h>

#include "core/err.h"
#include "layout/layout.h"
#include "layout/model.h"

/* Compare the newest complete step of `root` with the model that is to be added: its config, and
 * the names and shapes of its parameters. `replaced` is the number of a step that will be replaced,
 * and is not compared; -1: none. A root that does not exist agrees.
 * TP_E_USAGE: it is another model; the message says what differs. */
tp_status root_model_check(const char *root, int64_t replaced, const struct model *m,
                           const struct layout *l, struct tp_err *err);

#endif
