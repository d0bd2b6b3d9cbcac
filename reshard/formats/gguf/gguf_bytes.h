/*
 * reshard/formats/gguf/gguf_bytes.h - the bytes of a GGUF header as they are made: numbers
 * little-endian, strings with their length, and metadata keys with their types.
 *
 * Calls do not fail one by one: after a failed allocation gguf_bytes.failed is set, and nothing
 * more is added. The format: github.com/ggml-org/ggml/blob/master/docs/gguf.md
 */
#ifndef RESHARD_FORMATS_GGUF_GGUF_BYTES_H
#define RESHARD_FORMATS_GGUF_GGUF_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The types of values. */
enum gguf_value {
    GGUF_VALUE_U32 = 4,
    GGUF_VALUE_I32 = 5,
    GGUF_VALUE_F32 = 6,
    GGUF_VALUE_BOOL = 7,
    GGUF_VALUE_STRING = 8,
    GGUF_VALUE_ARRAY = 9,
};

struct gguf_bytes {
    char *data;
    size_t n, room;
    int64_t keys; /* metadata keys that were added */
    bool failed;
};

void gguf_bytes_free(struct gguf_bytes *b);

void gguf_bytes_add(struct gguf_bytes *b, const void *data, size_t n);
void gguf_bytes_u32(struct gguf_bytes *b, uint32_t x);
void gguf_bytes_u64(struct gguf_bytes *b, uint64_t x);
void gguf_bytes_f32(struct gguf_bytes *b, float x);
void gguf_bytes_string(struct gguf_bytes *b, const char *s);

/* ---- metadata keys; `arch` is the first part of the key, NULL: the key is whole ---- */

void gguf_key_u32(struct gguf_bytes *b, const char *arch, const char *key, int64_t x);
void gguf_key_f32(struct gguf_bytes *b, const char *arch, const char *key, double x);
void gguf_key_bool(struct gguf_bytes *b, const char *arch, const char *key, bool x);
void gguf_key_string(struct gguf_bytes *b, const char *arch, const char *key, const char *s);

/* An array of n values, which the caller adds next. */
void gguf_key_array(struct gguf_bytes *b, const char *key, enum gguf_value type, int64_t n);

#endif
