/*
 * reshard/formats/foreign_adapter.h - adapters of PEFT, such as LoRA: changes to a base model,
 * which are no model. They are not read; peft merges them into the base model.
 */
#ifndef RESHARD_FORMATS_FOREIGN_ADAPTER_H
#define RESHARD_FORMATS_FOREIGN_ADAPTER_H

#include "core/err.h"

/* TP_E_USAGE: the folder at `path`, which may be remote, has an adapter, alone or beside the
 * weights of a model, which would be taken without it. */
tp_status foreign_adapter_check(const char *path, struct tp_err *err);

/* TP_E_USAGE: a weight of what is at `path` has a name of an adapter that is wrapped around a
 * model, as a program saves it that saves the whole. */
tp_status foreign_adapter_check_name(const char *path, const char *name, struct tp_err *err);

#endif
