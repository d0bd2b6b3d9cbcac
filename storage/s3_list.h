/*
 * storage/s3_list.h - what is in a "folder" of an S3 bucket: the keys that begin with its path and
 * a slash, up to the next slash (ListObjectsV2). Inside storage/ only, for folder.c.
 */
#ifndef STORAGE_S3_LIST_H
#define STORAGE_S3_LIST_H

#include <stdbool.h>

#include "core/err.h"
#include "storage/folder_entry.h"

/* All entries of dir; *entries is malloc'ed. A folder that does not exist is empty. Names that
 * cannot be names of files are left out. Errors as remote_send. */
tp_status s3_list(struct folder_entry **entries, int *n, const char *dir, struct tp_err *err);

/* Add the entries of one page of a listing. *token: where the next page begins, or "". False: it is
 * not a listing, or has no token although it is truncated, or there is no memory. */
enum { S3_TOKEN_MAX = 2048 };
bool s3_list_parse(struct folder_entry **entries, int *n, char token[S3_TOKEN_MAX],
                   const char *text);

#endif
