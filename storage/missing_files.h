/*
 * storage/missing_files.h - which files of a checkpoint are missing, when one was not found: a copy
 * that was not completed lacks several.
 */
#ifndef STORAGE_MISSING_FILES_H
#define STORAGE_MISSING_FILES_H

#include "core/err.h"

/* *err says that a file was not found. If more than one of paths[0 .. n - 1] is missing, append how
 * many are, and the first of them, without the folder that all paths begin with. Only local paths
 * are looked for, because each remote one would be a request. Returns err->status. */
tp_status missing_files_add(struct tp_err *err, const char *const *paths, int n);

#endif
