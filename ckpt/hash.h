/*
 * ckpt/hash.h - SHA-256 as lower-case hexadecimal (OpenSSL).
 */
#ifndef CKPT_HASH_H
#define CKPT_HASH_H

#include <stddef.h>

#include "core/err.h"

enum { HASH_TEXT = 65 };

struct hash; /* a running SHA-256 */

tp_status hash_new(struct hash **h, struct tp_err *err);
void hash_add(struct hash *h, const void *data, size_t n);
void hash_text(struct hash *h, char out[HASH_TEXT]); /* ends and frees h */
tp_status hash_bytes(char out[HASH_TEXT], const void *data, size_t n, struct tp_err *err);

#endif
