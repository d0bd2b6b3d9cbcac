/*
 * storage/store_object.h - small objects of an S3-compatible store, each written or removed by one
 * request. Long ones are written in parts (storage/upload.h).
 *
 * The body of every request is signed, so the store refuses one that was damaged on its way.
 */
#ifndef STORAGE_STORE_OBJECT_H
#define STORAGE_STORE_OBJECT_H

#include <stddef.h>

#include "core/err.h"

/* Create an object. TP_E_EXISTS: it exists, with other content than this. */
tp_status store_object_create(const char *path, const void *data, size_t n, struct tp_err *err);

/* Replace an object whose content is the text `before` (NULL: there is none) by another text,
 * unless another program changes it meanwhile: TP_E_EXISTS. When a reply was lost it is not known
 * who changed it, because others write the same texts; then it is TP_E_EXISTS, too. */
tp_status store_object_swap(const char *path, const char *before, const char *after,
                            struct tp_err *err);

/* Write an object, also over one that exists. */
tp_status store_object_replace(const char *path, const void *data, size_t n, struct tp_err *err);

/* Remove an object; one that does not exist is not an error. */
tp_status store_object_delete(const char *path, struct tp_err *err);

/* Remove an object if its content is these bytes. A request whose answer was lost is not repeated
 * blindly: what is there then may be another program's. */
tp_status store_object_withdraw(const char *path, const void *data, size_t n, struct tp_err *err);

#endif
