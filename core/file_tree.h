/*
 * core/file_tree.h - directories with all that is in them.
 */
#ifndef CORE_FILE_TREE_H
#define CORE_FILE_TREE_H

#include <sys/types.h>

#include "core/err.h"

/* Remove a directory and all in it, as rm -rf. Symbolic links are removed, not followed, also when
 * another process replaces a directory by one meanwhile: every name is resolved once, in the open
 * directory that it was read from. */
tp_status file_tree_remove(const char *path, struct tp_err *err);

/* The same for `name` in the open directory `dir`. Directories of other users than `owner` are
 * neither entered nor removed (TP_E_IO); FILE_TREE_ANY_OWNER: all are. */
#define FILE_TREE_ANY_OWNER ((uid_t)-1)
tp_status file_tree_remove_at(int dir, const char *name, uid_t owner, struct tp_err *err);

#endif
