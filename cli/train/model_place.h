/*
 * cli/train/model_place.h - --ckpt and --model that name a folder of another kind: messages that
 * say what it is, and what takes it; and which files are those of a model.
 *
 * Only local folders are looked at, because each look at a remote one would be several requests.
 */
#ifndef CLI_TRAIN_MODEL_PLACE_H
#define CLI_TRAIN_MODEL_PLACE_H

#include <stdbool.h>

#include "core/err.h"

/* TP_E_USAGE: `root` has no step of tp-train but a checkpoint of another framework, which --resume
 * cannot continue and which steps would be mixed with. One of weights alone may be the model of
 * --model, so it is refused only without one. */
tp_status model_place_check_root(const char *root, bool has_model, struct tp_err *err);

/* *err says that `path` of --model has no config.json. If it is a checkpoint of tp-train, say so
 * instead. Returns err->status. */
tp_status model_place_explain(const char *path, struct tp_err *err);

/* Whether `path` is a file that is read of `model`, a local folder, by whatever name; or would be
 * one, if it is not there. */
bool model_place_has(const char *model, const char *path);

#endif
