/*
 * torch/pickle.h - reads a pickle into a tree of values, and executes nothing.
 *
 * A pickle is a program for a small stack machine. Here its instructions only build values: what
 * would import a module is a name (PICKLE_GLOBAL), and what would call a function is a record of
 * the call (PICKLE_OBJECT). Callers recognize the calls that they know.
 *
 * Limits hold for every input: the memory is proportional to the size of the pickle, nothing
 * recurses, values nest at most PICKLE_DEPTH_MAX deep, and no value contains itself. Extension
 * codes, buffers outside the pickle and the instructions INST, OBJ, STRING, UNICODE and PERSID of
 * protocol 0 are refused; torch.save does not write them.
 */
#ifndef TORCH_PICKLE_H
#define TORCH_PICKLE_H

#include <stddef.h>

#include "core/arena.h"
#include "core/err.h"
#include "torch/pickle_value.h"

/* Larger pickles are refused. */
enum { PICKLE_BYTES_MAX = 512 << 20 };

/* Read a pickle of `size` bytes. `path` is for messages. Values and their strings live in the
 * arena, which is the only memory that stays. TP_E_CORRUPT: it is damaged or hostile, and the
 * message says what is wrong at which byte; bytes after its end are ignored.
 * TP_E_BUDGET: the arena has a limit, and values, stack and memo need more. */
tp_status pickle_read(const struct pickle_value **out, const void *bytes, size_t size,
                      const char *path, struct arena *arena, struct tp_err *err);

#endif
