/*
 * layout/model_config.h - read Hugging Face's config.json into a struct model.
 */
#ifndef LAYOUT_MODEL_CONFIG_H
#define LAYOUT_MODEL_CONFIG_H

#include <stddef.h>

#include "core/arena.h"
#include "core/err.h"
#include "layout/model.h"

/* A longer file is refused. */
enum { MODEL_CONFIG_BYTES_MAX = 16 << 20 };

/* Read `path`: a config.json, or a folder that has one. Strings live in the arena. TP_E_NOTFOUND:
 * there is no such file; TP_E_USAGE: as model_config_parse, or the file is too long. */
tp_status model_config_read(struct model *out, const char *path, struct arena *arena,
                            struct tp_err *err);

/* Read config.json from memory: `size` bytes of any content; `path` is for messages. Optional keys
 * have transformers' defaults. TP_E_USAGE: not JSON, a key is missing, of the wrong type or out of
 * range, or a model or option that is not supported. Strings live in the arena. */
tp_status model_config_parse(struct model *out, const char *text, size_t size, const char *path,
                             struct arena *arena, struct tp_err *err);

/* The same for a model that may be of no family. Then the config only has to be a JSON object, and
 * *out is MODEL_OF_RULES. */
tp_status model_config_read_any(struct model *out, const char *path, struct arena *arena,
                                struct tp_err *err);
tp_status model_config_parse_any(struct model *out, const char *text, size_t size, const char *path,
                                 struct arena *arena, struct tp_err *err);

#endif
