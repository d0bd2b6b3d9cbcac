/*
 * ckpt/sha256.h - SHA-256 (OpenSSL) as 64 lower-case hexadecimal digits.
 */
#ifndef CKPT_SHA256_H
#define CKPT_SHA256_H

#include <stddef.h>

#include "core/err.h"

enum { SHA256_TEXT = 65 }; /* the digits and a zero byte */

struct sha256; /* a running hash */

/* A hash of nothing so far; sha256_end frees it. TP_E_NOMEM. sha256_add: of n more bytes. */
tp_status sha256_new(struct sha256 **h, struct tp_err *err);
void sha256_add(struct sha256 *h, const void *data, size_t n);

/* The hash of all that was added; frees h. */
void sha256_end(struct sha256 *h, char out[SHA256_TEXT]);

/* The hash of n bytes. */
tp_status sha256_of(char out[SHA256_TEXT], const void *data, size_t n, struct tp_err *err);

/* The hash of a file that our programs wrote (object_open). */
tp_status sha256_file(char out[SHA256_TEXT], const char *path, struct tp_err *err);

#endif
