/*
 * storage/upload.h - writing an object of an S3-compatible store in parts. It appears complete or
 * not at all, and never replaces another: its completion is conditional (If-None-Match).
 *
 * The body of every request is signed, so the store refuses one that was damaged on its way.
 */
#ifndef STORAGE_UPLOAD_H
#define STORAGE_UPLOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"

/* Limits of S3: bytes of a part but the last, and parts of an object. */
enum { UPLOAD_PART_BYTES_MIN = 5 << 20, UPLOAD_PARTS_MAX = 10000 };

struct upload;

/* The length of the parts of an object of `size` bytes. */
int64_t upload_part_bytes(int64_t size);

/* Begin to write an object of `size` bytes. Nothing is visible until upload_complete. */
tp_status upload_begin(struct upload **out, const char *path, int64_t size, struct tp_err *err);

/* Before the last part is sent: the object has only so many bytes, in parts that are as long as
 * before. */
void upload_shorten(struct upload *u, int64_t size);

/* Send part number 0, 1, ...: all its bytes, which are upload_part_bytes or what is left of the
 * object. Once for each part, in any order. Thread safe. */
tp_status upload_part(struct upload *u, int part, const void *data, size_t n, struct tp_err *err);

/* Make the object appear. TP_E_EXISTS: another program has written it. */
tp_status upload_complete(struct upload *u, struct tp_err *err);

/* Free; u may be NULL. What was not completed is removed from the store, as far as it answers. */
void upload_end(struct upload *u);

/* ---- one upload by several processes ----
 *
 * One process begins it and gives its id to the others, which join it. Each sends some parts. The
 * one that began combines the receipts of all, by OR, and completes the upload, or ends it.
 */

enum { UPLOAD_ID_MAX = 1024, UPLOAD_RECEIPT_WORDS = 10 };

/* The id, of less than UPLOAD_ID_MAX bytes. Borrowed. */
const char *upload_id(const struct upload *u);

/* Join an upload of the same path and size. upload_end leaves it as it is. */
tp_status upload_join(struct upload **out, const char *path, int64_t size, const char *id,
                      struct tp_err *err);

/* The store's receipts, UPLOAD_RECEIPT_WORDS for each part; 0: this process has not sent it.
 * Borrowed. */
uint64_t *upload_receipts(const struct upload *u, int64_t *n_words);

/* Whether there is a receipt for a part. */
bool upload_has_part(const struct upload *u, int part);

#endif
