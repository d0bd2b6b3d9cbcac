/*
 * storage/missing_files.h - which files of a checkpoint are missing, when one was not found: a copy
 * that was not completed lacks several.
 */
#ifndef STORAGE_MISSING_FILES_H
#define STORAGE_MISSING_FILES_H

#include "core/err.h"

/* *err says that a file was not found, or cannot be read. If more than one of paths[0 .. n - 1] is
 * missing, append how many are, and the first of them, without the folder that all paths begin
 * with. Only local paths are looked for, because each remote one would be a request. Returns
 * TP_E_CORRUPT, also in *err: the user did not name this file, so the request is right, and the
 * checkpoint is damaged. */
tp_status missing_files_fail(struct tp_err *err, const char *const *paths, int n);

#endif
