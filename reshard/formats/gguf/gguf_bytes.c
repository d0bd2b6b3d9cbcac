/* reshard/formats/gguf/gguf_bytes.c - see reshard/formats/gguf/gguf_bytes.h. */
#include "reshard/formats/gguf/gguf_bytes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_MAX = 128, FIRST_ROOM = 4096 };

void gguf_bytes_free(struct gguf_bytes *b)
{
    free(b->data);
    *b = (struct gguf_bytes){ 0 };
}

void gguf_bytes_add(struct gguf_bytes *b, const void *data, size_t n)
{
    size_t room = b->room ? b->room : FIRST_ROOM;
    char *grown;

    if (b->failed || n == 0)
        return;
    while (room - b->n < n && room < SIZE_MAX / 4)
        room *= 2;
    if (room != b->room) {
        grown = room - b->n < n ? NULL : realloc(b->data, room);
        if (!grown) {
            b->failed = true;
            return;
        }
        b->data = grown;
        b->room = room;
    }
    memcpy(b->data + b->n, data, n);
    b->n += n;
}

void gguf_bytes_u32(struct gguf_bytes *b, uint32_t x)
{
    gguf_bytes_add(b, &x, sizeof x);
}

void gguf_bytes_u64(struct gguf_bytes *b, uint64_t x)
{
    gguf_bytes_add(b, &x, sizeof x);
}

void gguf_bytes_f32(struct gguf_bytes *b, float x)
{
    gguf_bytes_add(b, &x, sizeof x);
}

void gguf_bytes_string(struct gguf_bytes *b, const char *s)
{
    const size_t n = strlen(s);

    gguf_bytes_u64(b, n);
    gguf_bytes_add(b, s, n);
}

/* ---- metadata keys ---- */

static void begin_key(struct gguf_bytes *b, const char *arch, const char *key, enum gguf_value type)
{
    char text[KEY_MAX];

    snprintf(text, sizeof text, "%s%s%s", arch ? arch : "", arch ? "." : "", key);
    gguf_bytes_string(b, text);
    gguf_bytes_u32(b, type);
    b->keys++;
}

void gguf_key_u32(struct gguf_bytes *b, const char *arch, const char *key, int64_t x)
{
    begin_key(b, arch, key, GGUF_VALUE_U32);
    gguf_bytes_u32(b, x > UINT32_MAX ? UINT32_MAX : (uint32_t)x);
}

void gguf_key_f32(struct gguf_bytes *b, const char *arch, const char *key, double x)
{
    begin_key(b, arch, key, GGUF_VALUE_F32);
    gguf_bytes_f32(b, (float)x);
}

void gguf_key_bool(struct gguf_bytes *b, const char *arch, const char *key, bool x)
{
    const unsigned char byte = x;

    begin_key(b, arch, key, GGUF_VALUE_BOOL);
    gguf_bytes_add(b, &byte, sizeof byte);
}

void gguf_key_string(struct gguf_bytes *b, const char *arch, const char *key, const char *s)
{
    begin_key(b, arch, key, GGUF_VALUE_STRING);
    gguf_bytes_string(b, s);
}

void gguf_key_array(struct gguf_bytes *b, const char *key, enum gguf_value type, int64_t n)
{
    begin_key(b, NULL, key, GGUF_VALUE_ARRAY);
    gguf_bytes_u32(b, type);
    gguf_bytes_u64(b, (uint64_t)n);
}
