/* trainer/buffer_pool.c - see trainer/buffer_pool.h. */
#include "trainer/buffer_pool.h"

#include <stddef.h>

enum { ALIGN = 64 };

void *buffer_pool_take(struct buffer_pool *s, int64_t n, int64_t size)
{
    char *p = s->base ? s->base + s->used : NULL;
    int64_t bytes;

    if (__builtin_mul_overflow(n, size, &bytes) ||
        __builtin_add_overflow(bytes, ALIGN - 1, &bytes) ||
        __builtin_add_overflow(s->used, bytes / ALIGN * ALIGN, &s->used))
        s->used = INT64_MAX;
    return p;
}
