/*
 * core/file_exchange.h - two names of one folder change places.
 */
#ifndef CORE_FILE_EXCHANGE_H
#define CORE_FILE_EXCHANGE_H

#include <stdbool.h>

#include "core/err.h"

/*
 * What has the name `a` gets the name `b`, and the other way round. Both exist. The caller syncs
 * the folder.
 *
 * File systems that cannot exchange names (NFS, and most that run in user space) get three renames
 * instead of one. A program that dies between them leaves what had the name b as
 * B.replaced-<pid>, which no program of ours reads or removes.
 *
 * After a failure both have their names, unless the message says where b is.
 */
tp_status file_exchange(const char *a, const char *b, struct tp_err *err);

/* Undo a rename of tmp to `path`, or their exchange. False: it failed, so tmp may be what had the
 * name `path` before. */
bool file_take_back(const char *path, const char *tmp, bool exchanged);

#endif
