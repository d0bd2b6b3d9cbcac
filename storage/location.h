/*
 * storage/location.h - what a path names: a local file, an object of a web server, or one of an
 * S3-compatible store. Pure text; nothing is opened.
 *
 *     runs/ckpt                      local
 *     https://host/runs/ckpt         a web server
 *     s3://bucket/runs/ckpt          bucket and key
 *
 * file_join (core/file.h) appends names to all three.
 */
#ifndef STORAGE_LOCATION_H
#define STORAGE_LOCATION_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#include "core/err.h"

enum location_kind { LOCATION_LOCAL, LOCATION_HTTP, LOCATION_S3 };

enum { LOCATION_BUCKET_MAX = 64, LOCATION_URL_MAX = 16384 };

enum location_kind location_kind(const char *path);

/* Whether a path is not local. */
bool location_is_remote(const char *path);

/* Check that a remote path can be used; local paths always can. TP_E_USAGE: an invalid bucket, a
 * URL of another kind (ftp://...), one that is misspelt (S3://..., s3:/...), or a URL with a user,
 * a password, a query or a fragment. These often are secrets, so the message does not repeat
 * them. */
tp_status location_check(const char *path, struct tp_err *err);

/* The path of a checkpoint, checked as by location_check, without the slashes at its end: stores
 * take them for parts of a key. TP_E_USAGE also: it is empty, or has PATH_MAX bytes. */
tp_status location_clean(char out[PATH_MAX], const char *path, struct tp_err *err);

/* TP_E_USAGE: the path is not local, and what is done needs a local folder. */
tp_status location_check_local(const char *path, struct tp_err *err);

/* The bucket of an S3 path that location_check accepts, and its key, which may be "". The key is
 * borrowed from the path. */
const char *location_split(char bucket[LOCATION_BUCKET_MAX], const char *path);

/* Append text to out, which has `size` bytes, with every byte as %XX that is not a letter, a digit,
 * or one of -._~ (RFC 3986). keep_slash: slashes stay too. False: no room. */
bool location_encode(char *out, size_t size, const char *text, bool keep_slash);

#endif
