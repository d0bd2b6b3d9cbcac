/*
 * storage/folder.h - what is in a folder, wherever it is. A folder of an S3 bucket exists as long
 * as an object's key begins with its path. A web server has no listings.
 */
#ifndef STORAGE_FOLDER_H
#define STORAGE_FOLDER_H

#include <stdbool.h>

#include "core/err.h"
#include "storage/folder_entry.h"

/* The entries of a folder in any order, without "." and ".."; malloc'ed. TP_E_NOTFOUND: there is no
 * such folder. TP_E_USAGE: it is a web server's. */
tp_status folder_list(struct folder_entry **entries, int *n, const char *dir, struct tp_err *err);

/* Whether there is such a folder. A web server does not say; *exists is true then. */
tp_status folder_exists(bool *exists, const char *dir, struct tp_err *err);

#endif
